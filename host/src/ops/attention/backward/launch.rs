//! The gradients of attention on a GPU or in the emulator: what tiles read of rows, then tiles of queries, then tiles of keys.
//!
//! Hopper's kernels take what has no operands that change scores, those for every GPU the rest.

mod hopper;

use half::{bf16, f16};
use warpsmith_dsl::attention::gradient::portable::{GradientTensors, GradientTile};
use warpsmith_dsl::attention::gradient::{
    BLOCK_ROWS, GivesKeys, GivesKeysAndValues, GivesQueries, GivesValues, GradientParams, ROW_NUMBERS,
    RowParams,
};
use warpsmith_dsl::attention::portable::Strided;
use warpsmith_dsl::attention::scores::{ScoreOperands, ScoreStrides};
use warpsmith_dsl::attention::window::Window;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, KernelArgs};
use warpsmith_kernels::attention_gradient::{
    Gradient64, Gradient64By16, Gradient64By32, Gradient96, Gradient128, Gradient128By16, Gradient128Sliced,
    Gradient192, Gradient256, Gradient256Sliced, attention_gradient, attention_gradient_rows,
};

use super::{AttentionGradientOp, AttentionGradientOutputs, AttentionInput, OPERATION};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::attention::check::Checked;
use crate::ops::attention::launch::hopper::{RESIDENT_BYTES, ends_in_place};
use crate::ops::attention::launch::{MAX_COLUMNS, MAX_LENGTH, is_aligned, strided};
use crate::ops::attention::problem::Problem;
use crate::ops::column_sums::{column_sums, launch_of};
use crate::ops::{Implementation, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// The arguments of tiles.
type Args = (GradientTensors, ScoreOperands, GradientParams);

/// A kernel and how it is launched on so many blocks.
struct Launcher<A> {
    declaration: Declaration,
    launch: unsafe fn(&Stream, u32, A) -> Result<()>,
}

// Derived ones would ask for it of the arguments.
impl<A> Clone for Launcher<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Launcher<A> {}

impl<A: KernelArgs> Launcher<A> {
    fn of<K: Kernel<Args = A>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch::<A, K> }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them.
unsafe fn launch<A: KernelArgs, K: Kernel<Args = A>>(stream: &Stream, blocks: u32, args: A) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { stream.device().kernel::<K>()?.launch(stream, [blocks, 1, 1], args) }
}

/// The kernels for heads of so many columns.
#[derive(Clone, Copy)]
pub struct Instance {
    rows: Launcher<(RowParams,)>,
    queries: Launcher<Args>,
    keys: KeyKernels,
    /// Blocks of a tile, each for a slice of the columns.
    slices: u32,
}

/// What gives dK and dV.
#[derive(Clone, Copy)]
enum KeyKernels {
    Both(Launcher<Args>),
    Apart { keys: Launcher<Args>, values: Launcher<Args> },
}

/// The kernels of an element type.
#[doc(hidden)]
pub trait Kernels: Element {
    /// The kernels for heads and values of at most so many columns.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn gradient_instance(columns: usize) -> Option<Instance>;

    /// Those of Hopper.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn hopper_gradient_instance(columns: usize) -> Option<hopper::Instance>;
}

macro_rules! kernels {
    ($($element:ident $device:ident [$($both:literal $of_queries:ident $of_both:ident),*] [$($apart:literal $of_apart:ident),*];)*) => {
        $(
            impl Kernels for $element {
                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn gradient_instance(columns: usize) -> Option<Instance> {
                    let rows = Launcher::of::<attention_gradient_rows<$device>>();
                    Some(match columns {
                        $(..=$both => Instance {
                            rows,
                            queries: Launcher::of::<attention_gradient<$device, $of_queries, GivesQueries>>(),
                            keys: KeyKernels::Both(
                                Launcher::of::<attention_gradient<$device, $of_both, GivesKeysAndValues>>(),
                            ),
                            slices: 1,
                        },)*
                        $(..=$apart => Instance {
                            rows,
                            queries: Launcher::of::<attention_gradient<$device, $of_apart, GivesQueries>>(),
                            keys: KeyKernels::Apart {
                                keys: Launcher::of::<attention_gradient<$device, $of_apart, GivesKeys>>(),
                                values: Launcher::of::<attention_gradient<$device, $of_apart, GivesValues>>(),
                            },
                            slices: GradientTile::<$device, $of_apart, GivesQueries>::SLICES,
                        },)*
                        _ => return None,
                    })
                }

                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn hopper_gradient_instance(columns: usize) -> Option<hopper::Instance> {
                    kernels!(@hopper $device, columns)
                }
            }
        )*
    };
    (@hopper f32, $columns:ident) => {{
        // At f32 accuracy there are none.
        let _ = $columns;
        None
    }};
    (@hopper F16, $columns:ident) => {
        hopper::Instance::f16($columns)
    };
    (@hopper Bf16, $columns:ident) => {
        hopper::Instance::bf16($columns)
    };
}
kernels!(
    f16 F16 [64 Gradient64 Gradient64By32, 96 Gradient96 Gradient96, 128 Gradient128 Gradient128By16] [192 Gradient192, 256 Gradient256];
    bf16 Bf16 [64 Gradient64 Gradient64By32, 96 Gradient96 Gradient96, 128 Gradient128 Gradient128By16] [192 Gradient192, 256 Gradient256];
    f32 f32 [] [64 Gradient64By16, 128 Gradient128Sliced, 256 Gradient256Sliced];
);

/// What tiles read and write.
struct TileTensors<'a, T: Element> {
    q: &'a Tensor<T>,
    k: &'a Tensor<T>,
    v: &'a Tensor<T>,
    dy: &'a Tensor<T>,
    /// dq, dk and dv.
    outputs: [Option<&'a Tensor<T>>; 3],
    /// [`ROW_NUMBERS`] of each row.
    rows: Global<f32>,
}

impl<T: Element> TileTensors<'_, T> {
    /// Where the gradients of q, k and v go: null if they are not asked for.
    fn places(&self) -> [Strided; 3] {
        let null = || Strided { base: GlobalMut::new(0), sequence: 0, row: 0, head: 0 };
        self.outputs.map(|output| output.map_or_else(null, strided))
    }
}

/// A launch of tiles, all arguments of which are known.
type Launch<'a> = Box<dyn FnOnce(&Stream) -> Result<()> + 'a>;

impl<A: KernelArgs + 'static> Launcher<A> {
    /// The launch on so many blocks.
    ///
    /// # Safety
    ///
    /// The arguments are valid for what the kernel does with them, when it is called.
    unsafe fn on(self, blocks: u32, args: A) -> Launch<'static> {
        // SAFETY: the caller's promise.
        Box::new(move |stream| unsafe { (self.launch)(stream, blocks, args) })
    }
}

impl Instance {
    /// The kernels of queries, of keys, and of values, where the latter are apart.
    fn declarations(&self) -> [Option<Declaration>; 3] {
        let mut tiles = self.tiles().map(|tiles| tiles.declaration);
        [tiles.next(), tiles.next(), tiles.next()]
    }

    /// The launches of what is asked for.
    fn launches<T: AttentionInput>(
        &self,
        tensors: &TileTensors<'_, T>,
        plan: &Plan,
        checked: &Checked<'_, '_, T, T>,
    ) -> Vec<Launch<'static>> {
        let problem = &checked.problem;
        let [dq, dk, dv] = tensors.places();
        let all = GradientTensors {
            q: strided(tensors.q),
            k: strided(tensors.k),
            v: strided(tensors.v),
            dy: strided(tensors.dy),
            own: dq,
            dv,
            rows: tensors.rows,
            columns: problem.width as u32,
            value_columns: problem.value_width as u32,
        };
        let (score, sequences) = (checked.score_operands(), checked.operands.sequences());
        let of_queries = (all, score, GradientParams { sizes: plan.queries.0, sequences });
        let of_keys = (
            GradientTensors { own: dk, ..all },
            exchanged(score),
            GradientParams { sizes: plan.keys.0, sequences: exchanged_sequences(sequences) },
        );
        let [has_dq, has_dk, has_dv] = tensors.outputs.map(|output| output.is_some());
        let (queries, keys) = (plan.queries.1, plan.keys.1);
        let of_kernels = match self.keys {
            KeyKernels::Both(both) => [(both, has_dk || has_dv), (both, false)],
            KeyKernels::Apart { keys, values } => [(keys, has_dk), (values, has_dv)],
        };
        let mut launches = Vec::new();
        // SAFETY: operands have been checked; the launches are made while the tensors are there.
        unsafe {
            if has_dq && queries != 0 {
                launches.push(self.queries.on(queries, of_queries));
            }
            for (kernel, _) in of_kernels.into_iter().filter(|&(_, is)| is && keys != 0) {
                launches.push(kernel.on(keys, of_keys));
            }
        }
        launches
    }

    fn tiles(&self) -> impl Iterator<Item = Launcher<Args>> {
        let (first, second) = match self.keys {
            KeyKernels::Both(both) => (both, None),
            KeyKernels::Apart { keys, values } => (keys, Some(values)),
        };
        [self.queries, first].into_iter().chain(second)
    }

    /// The most shared memory that a block of its kernels has.
    fn shared_bytes(&self) -> u32 {
        self.tiles().map(|kernel| kernel.declaration.shared_bytes).max().unwrap_or(0)
    }

    fn runs_on(&self, device: &Device) -> bool {
        let properties = device.properties();
        properties.compute_capability >= (8, 0)
            && self.tiles().all(|kernel| is_built(kernel.declaration.family))
            && self.shared_bytes() <= properties.max_shared_per_block
    }
}

/// Whether no gradient of q, k and v has elements of a sequence.
pub(super) fn is_nothing(problem: &Problem) -> bool {
    let &Problem { batch, heads, key_heads, rows, keys, .. } = problem;
    batch == 0 || (heads == 0 || rows == 0) && (key_heads == 0 || keys == 0)
}

/// The kernels of tiles.
#[derive(Clone, Copy)]
enum TileKernels {
    Hopper(hopper::Instance),
    Portable(Instance),
}

/// The kernels of an attention's gradients, and their grids.
struct Plan {
    /// What finds the numbers of rows, what it is told, and its blocks.
    rows: (Launcher<(RowParams,)>, Sizes, u32),
    tiles: TileKernels,
    /// What tiles of queries are told, and their blocks.
    queries: (Sizes, u32),
    /// The same of tiles of keys, where the places of rows and keys are exchanged.
    keys: (Sizes, u32),
}

impl Plan {
    fn new<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Result<Self> {
        Self::of(checked).ok_or_else(|| no_kernel(checked))
    }

    fn of<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Option<Self> {
        let problem = &checked.problem;
        if problem.rows >= MAX_LENGTH || problem.keys >= MAX_LENGTH {
            return None;
        }
        let columns = problem.width.max(problem.value_width);
        let device = checked.stream.device();
        let portable = T::gradient_instance(columns).filter(|instance| instance.runs_on(device))?;
        let hopper = T::hopper_gradient_instance(columns).filter(|_| hopper::serves(checked));
        let (tiles, of_tile, slices) = match hopper {
            Some(hopper) => (TileKernels::Hopper(hopper), hopper::BLOCK_ROWS, 1),
            None => (TileKernels::Portable(portable), BLOCK_ROWS, portable.slices),
        };
        let sizes = problem.sizes();
        let exchanged = Sizes {
            heads: problem.key_heads as u32,
            rows: sizes.keys,
            // Without heads of queries no row attends to a key.
            keys: if problem.heads == 0 { 0 } else { sizes.rows },
            window: Window { left: sizes.window.right, right: sizes.window.left, ..sizes.window },
            ..sizes
        };
        let [heads, key_heads] = [problem.heads, problem.key_heads];
        // Bytes that tiles of queries read of each head of keys, and those of keys of each.
        let row_bytes = (problem.width + problem.value_width) * size_of::<T>();
        let group = heads.checked_div(key_heads).unwrap_or(0);
        let of_keys = (problem.keys * row_bytes, group);
        let of_queries = (problem.rows * row_bytes * group, 1);
        let (of_rows, row_blocks) = tiled(problem, sizes, (heads, problem.rows), (BLOCK_ROWS, 1), of_keys)?;
        Some(Self {
            rows: (portable.rows, of_rows, row_blocks),
            tiles,
            queries: tiled(problem, sizes, (heads, problem.rows), (of_tile, slices), of_keys)?,
            keys: tiled(problem, exchanged, (key_heads, problem.keys), (of_tile, slices), of_queries)?,
        })
    }

    /// The kernels in the order of their launches, and their blocks.
    fn kernels(&self) -> impl Iterator<Item = (Declaration, u32)> {
        let [queries, keys, values] = match self.tiles {
            TileKernels::Hopper(tiles) => tiles.declarations(),
            TileKernels::Portable(tiles) => tiles.declarations(),
        };
        let (of_queries, of_keys) = (self.queries.1, self.keys.1);
        let all = [
            (Some(self.rows.0.declaration), self.rows.2),
            (queries, of_queries),
            (keys, of_keys),
            (values, of_keys),
        ];
        let there = all.into_iter().filter(|&(_, blocks)| blocks != 0);
        there.filter_map(|(kernel, blocks)| Some((kernel?, blocks)))
    }
}

/// The error for sizes that no kernel of the device takes, if there is anything to compute.
pub(super) fn expect_kernels<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Result<()> {
    if checked.stream.device().kind() == DeviceKind::Cpu || is_nothing(&checked.problem) {
        return Ok(());
    }
    Plan::new(checked).map(drop)
}

/// Sizes with tiles of so many rows of each of so many heads, and blocks for them, so many for each, if a grid has as many.
///
/// The heads whose tiles alternate are those that share bytes which the level-2 cache holds: of so many bytes, which so many heads share.
fn tiled(
    problem: &Problem,
    sizes: Sizes,
    (heads, rows): (usize, usize),
    (of_tile, slices): (u32, u32),
    (bytes, sharing): (usize, usize),
) -> Option<(Sizes, u32)> {
    let of_tile = of_tile as usize;
    // Each packed sequence may begin a tile of its own.
    let tiles = if problem.is_packed { rows / of_tile + problem.batch } else { rows.div_ceil(of_tile) };
    let heads = if problem.is_packed { heads } else { problem.batch.checked_mul(heads)? };
    let blocks = (tiles as u64).checked_mul(heads as u64)?.checked_mul(slices.into())?;
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31)?;
    let section = (RESIDENT_BYTES / bytes.max(1) as u64).max(1).saturating_mul(sharing.max(1) as u64);
    let section = section.min(heads.max(1) as u64) as u32;
    let sizes = Sizes { tiles: tiles as u32, section, rows_of_heads: heads as u32, ..sizes };
    Some((sizes, blocks))
}

/// The error where no kernel of the device can compute the gradients.
fn no_kernel<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Error {
    let device = checked.stream.device();
    let properties = device.properties();
    let (major, minor) = properties.compute_capability;
    let &Problem { width, value_width, batch, heads, rows, keys, .. } = &checked.problem;
    let instance = T::gradient_instance(width.max(value_width).min(MAX_COLUMNS));
    let shared = instance.as_ref().map_or(0, Instance::shared_bytes).div_ceil(1024);
    Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!(
            "compute capability 8.0 or later with {shared} KiB of shared memory, at most {MAX_COLUMNS} columns of q and of v, and less than 2^30 rows and keys, and 2^31 tiles of all heads and sequences"
        ),
        actual: format!(
            "compute capability {major}.{minor}, {}, {width} and {value_width} columns, {batch} sequences of {heads} heads, {rows} rows and {keys} keys, {} KiB of shared memory",
            T::DTYPE,
            properties.max_shared_per_block / 1024
        ),
    }
}

/// Score operands with the places of rows and keys exchanged.
fn exchanged(operands: ScoreOperands) -> ScoreOperands {
    let strides = |strides: ScoreStrides| ScoreStrides { row: strides.key, key: strides.row, ..strides };
    ScoreOperands {
        bias_strides: strides(operands.bias_strides),
        mask_strides: strides(operands.mask_strides),
        block_strides: strides(operands.block_strides),
        block_rows: operands.block_keys,
        block_keys: operands.block_rows,
        paired: 0,
        ..operands
    }
}

/// Sequences with the places of rows and keys exchanged.
fn exchanged_sequences(sequences: Sequences) -> Sequences {
    Sequences {
        offsets_q: sequences.offsets_k,
        offsets_k: sequences.offsets_q,
        lengths_q: sequences.lengths_k,
        lengths_k: sequences.lengths_q,
    }
}

impl<T: AttentionInput> AttentionGradientOp<'_, T> {
    /// The kernels that [`run`](Self::run) would launch.
    pub(super) fn launches(&self, checked: &Checked<'_, '_, T, T>) -> Result<Implementation> {
        let operands = checked.operands;
        let device = checked.stream.device();
        let plan = Plan::new(checked)?;
        let kernel = |(declaration, blocks): (Declaration, u32)| {
            Implementation::kernel(device, declaration.name, blocks)
        };
        let mut all =
            plan.kernels().map(kernel).reduce(Implementation::then).unwrap_or(Implementation::Empty);
        if operands.sinks.is_some() && plan.queries.1 != 0 {
            let (name, blocks) = launch_of::<f32>(checked.problem.heads);
            all = all.then(Implementation::kernel(device, name, blocks));
        }
        let copies = self.read(checked).into_iter().zip(self.are_in_place(&plan, checked));
        let all = all.with_copies(copies.filter(|&(_, is)| !is).count());
        match &operands.rotary {
            Some(rotary) => Ok(operands.rotary_implementation(rotary)?.then(all)),
            None => Ok(all),
        }
    }

    /// What kernels read of the element type: q, k, v, dy and y.
    fn read<'a>(&'a self, checked: &Checked<'_, 'a, T, T>) -> [&'a Tensor<T>; 5] {
        let operands = checked.operands;
        [operands.q, operands.k, operands.v, self.dy, self.y]
    }

    /// Which of [these](Self::read) a plan's kernels read in place.
    fn are_in_place(&self, plan: &Plan, checked: &Checked<'_, '_, T, T>) -> [bool; 5] {
        let [q, k, v, dy, y] = self.read(checked);
        let problem = &checked.problem;
        let [ends_q, ends_k] = match plan.tiles {
            TileKernels::Hopper(_) => hopper::ends(checked),
            TileKernels::Portable(_) => [false; 2],
        };
        let is = |x: &Tensor<T>, ends: bool, rows: usize| {
            if ends { ends_in_place(x, problem, rows) } else { is_aligned(x) }
        };
        // What is turned before is without gaps.
        let rotary = checked.operands.rotary.as_ref();
        let [dense_q, dense_k] = checked.are_in_place();
        [
            if rotary.is_some() { dense_q } else { is(q, ends_q, problem.rows) },
            if rotary.is_some_and(|of| of.turns_keys()) { dense_k } else { is(k, ends_k, problem.keys) },
            is(v, ends_k, problem.keys),
            is(dy, ends_q, problem.rows),
            is_aligned(y),
        ]
    }

    /// Launches the kernels that compute the gradients that are asked for.
    pub(super) fn launch(
        &self,
        checked: &Checked<'_, '_, T, T>,
        outputs: AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        let plan = Plan::new(checked)?;
        let (operands, problem, stream) = (checked.operands, &checked.problem, &checked.stream);
        let AttentionGradientOutputs { dq, dk, dv, dsinks, adds } = outputs;
        let outputs = [dq.as_deref(), dk.as_deref(), dv.as_deref()];
        let in_place = self.are_in_place(&plan, checked);
        let read = |(x, is): (&Tensor<T>, bool)| if is { Ok(x.clone()) } else { repack(x).on(stream).run() };
        let [q, k, v, dy, y] = self.read(checked);
        let q = read((q, in_place[0]))?;
        let k = read((k, in_place[1]))?;
        let v = read((v, in_place[2]))?;
        let dy = read((dy, in_place[3]))?;
        let y = read((y, in_place[4]))?;
        let count = problem.all_heads() * problem.rows;
        let mut rows = match plan.tiles {
            // Copies go beyond the last row of a sequence, and of all.
            TileKernels::Hopper(tiles) => {
                Tensor::<f32>::zeros_on(stream, [count + tiles.queries_of_block(), ROW_NUMBERS as usize])
            }
            TileKernels::Portable(_) => Tensor::<f32>::uninit_on(stream, [count, ROW_NUMBERS as usize]),
        }?;
        let parts = if problem.is_packed { problem.rows } else { problem.batch * problem.rows };
        let mut of_sinks = match &dsinks {
            // Rows of no sequence add nothing.
            Some(_) => Some(Tensor::<f32>::zeros_on(stream, [parts, problem.heads])?),
            None => None,
        };
        let (rows_kernel, row_sizes, row_blocks) = plan.rows;
        let row_params = RowParams {
            y: strided(&y),
            dy: strided(&dy),
            lse: self.lse.arg(),
            sinks: operands.sinks.map_or(Global::new(0), Tensor::arg),
            rows: rows.arg_mut(),
            dsinks: of_sinks.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut),
            columns: problem.value_width as u32,
            reserved: 0,
            sizes: row_sizes,
            sequences: operands.sequences(),
        };
        let tiles = TileTensors {
            q: &q,
            k: &k,
            v: &v,
            dy: &dy,
            outputs,
            rows: Global::new(rows.arg_mut().address()),
        };
        let launches = match plan.tiles {
            TileKernels::Hopper(kernels) => kernels.launches(&tiles, &plan, checked)?,
            TileKernels::Portable(kernels) => kernels.launches(&tiles, &plan, checked),
        };
        let mut used: Vec<&dyn Operand> = vec![&q, &k, &v, &dy, &y, self.lse, &rows];
        used.extend(outputs.into_iter().flatten().map(|output| output as &dyn Operand));
        used.extend(of_sinks.as_ref().map(|of_sinks| of_sinks as &dyn Operand));
        used.extend(operands.options());
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and device of the operands have been checked; offsets and lengths are bounded by the kernels, and there is room for the numbers of
            // each row. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe {
                if row_blocks != 0 {
                    (rows_kernel.launch)(stream, row_blocks, (row_params,))?;
                }
                for launch in launches {
                    launch(stream)?;
                }
            }
            Ok(())
        })?;
        column_sums(stream, [of_sinks.as_ref().zip(dsinks), None], adds)
    }
}
