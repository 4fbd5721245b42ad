//! The gradients of attention on a GPU or in the emulator: what tiles read of rows, then tiles of queries, then tiles of keys.

use half::{bf16, f16};
use warpsmith_dsl::attention::gradient::{
    BLOCK_ROWS, GivesKeys, GivesKeysAndValues, GivesQueries, GivesValues, GradientTensors, ROW_NUMBERS,
    RowParams,
};
use warpsmith_dsl::attention::portable::Strided;
use warpsmith_dsl::attention::scores::{ScoreOperands, ScoreStrides};
use warpsmith_dsl::attention::window::Window;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, KernelArgs};
use warpsmith_kernels::attention_gradient::{
    Gradient64, Gradient64By16, Gradient64By32, Gradient96, Gradient128, Gradient128By16, Gradient192,
    Gradient256, GradientParams, attention_gradient, attention_gradient_rows,
};

use super::{AttentionGradientOp, AttentionGradientOutputs, AttentionInput, OPERATION};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::Implementation;
use crate::ops::attention::check::Checked;
use crate::ops::attention::launch::{MAX_COLUMNS, MAX_LENGTH, aligned, is_aligned, strided};
use crate::ops::attention::problem::Problem;
use crate::ops::column_sums::{column_sums, launch_of};
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
                        },)*
                        $(..=$apart => Instance {
                            rows,
                            queries: Launcher::of::<attention_gradient<$device, $of_apart, GivesQueries>>(),
                            keys: KeyKernels::Apart {
                                keys: Launcher::of::<attention_gradient<$device, $of_apart, GivesKeys>>(),
                                values: Launcher::of::<attention_gradient<$device, $of_apart, GivesValues>>(),
                            },
                        },)*
                        _ => return None,
                    })
                }
            }
        )*
    };
}
kernels!(
    f16 F16 [64 Gradient64 Gradient64By32, 96 Gradient96 Gradient96, 128 Gradient128 Gradient128By16] [192 Gradient192, 256 Gradient256];
    bf16 Bf16 [64 Gradient64 Gradient64By32, 96 Gradient96 Gradient96, 128 Gradient128 Gradient128By16] [192 Gradient192, 256 Gradient256];
    f32 f32 [] [64 Gradient64By16];
);

impl Instance {
    fn tiles(&self) -> impl Iterator<Item = Launcher<Args>> {
        let (first, second) = match self.keys {
            KeyKernels::Both(both) => (both, None),
            KeyKernels::Apart { keys, values } => (keys, Some(values)),
        };
        [self.queries, first].into_iter().chain(second)
    }

    fn runs_on(&self, device: &Device) -> bool {
        let properties = device.properties();
        properties.compute_capability >= (8, 0)
            && self.tiles().all(|kernel| {
                is_built(kernel.declaration.family)
                    && kernel.declaration.shared_bytes <= properties.max_shared_per_block
            })
    }
}

/// Whether no gradient of q, k and v has elements of a sequence.
pub(super) fn is_nothing(problem: &Problem) -> bool {
    let &Problem { batch, heads, key_heads, rows, keys, .. } = problem;
    batch == 0 || (heads == 0 || rows == 0) && (key_heads == 0 || keys == 0)
}

/// The kernels of an attention's gradients, and their grids.
struct Plan {
    instance: Instance,
    /// What tiles of queries are told, and their blocks.
    queries: (Sizes, u32),
    /// The same of tiles of keys, where the places of rows and keys are exchanged.
    keys: (Sizes, u32),
}

impl Plan {
    fn new<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Result<Self> {
        let problem = &checked.problem;
        let is_small = problem.rows < MAX_LENGTH && problem.keys < MAX_LENGTH;
        let instance = T::gradient_instance(problem.width.max(problem.value_width))
            .filter(|instance| is_small && instance.runs_on(checked.stream.device()));
        let sizes = problem.sizes();
        let exchanged = Sizes {
            heads: problem.key_heads as u32,
            rows: sizes.keys,
            // Without heads of queries no row attends to a key.
            keys: if problem.heads == 0 { 0 } else { sizes.rows },
            window: Window { left: sizes.window.right, right: sizes.window.left, ..sizes.window },
            ..sizes
        };
        let plan = instance.and_then(|instance| {
            let [heads, key_heads] = [problem.heads, problem.key_heads];
            Some(Self {
                instance,
                queries: tiled(problem, sizes, heads, problem.rows)?,
                keys: tiled(problem, exchanged, key_heads, problem.keys)?,
            })
        });
        plan.ok_or_else(|| no_kernel(checked))
    }
}

/// The error for sizes that no kernel of the device takes, if there is anything to compute.
pub(super) fn expect_kernels<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Result<()> {
    if checked.stream.device().kind() == DeviceKind::Cpu || is_nothing(&checked.problem) {
        return Ok(());
    }
    Plan::new(checked).map(drop)
}

/// Sizes with tiles of so many rows of each of so many heads, and blocks for them, if a grid has as many.
fn tiled(problem: &Problem, sizes: Sizes, heads: usize, rows: usize) -> Option<(Sizes, u32)> {
    let of_tile = BLOCK_ROWS as usize;
    // Each packed sequence may begin a tile of its own.
    let tiles = if problem.is_packed { rows / of_tile + problem.batch } else { rows.div_ceil(of_tile) };
    let heads = if problem.is_packed { heads } else { problem.batch.checked_mul(heads)? };
    let blocks = (tiles as u64).checked_mul(heads as u64).filter(|&blocks| blocks < 1 << 31)?;
    let sizes =
        Sizes { tiles: tiles as u32, section: heads.max(1) as u32, rows_of_heads: heads as u32, ..sizes };
    Some((sizes, blocks as u32))
}

/// The error where no kernel of the device can compute the gradients.
fn no_kernel<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> Error {
    let device = checked.stream.device();
    let properties = device.properties();
    let (major, minor) = properties.compute_capability;
    let &Problem { width, value_width, batch, heads, rows, keys, .. } = &checked.problem;
    Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!(
            "compute capability 8.0 or later with 97 KiB of shared memory, at most {MAX_COLUMNS} columns of q and of v (in f32 64), and less than 2^30 rows and keys, and 2^31 tiles of all heads and sequences"
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

impl<T: AttentionInput> AttentionGradientOp<'_, T> {
    /// The kernels that [`run`](Self::run) would launch.
    pub(super) fn launches(&self, checked: &Checked<'_, '_, T, T>) -> Result<Implementation> {
        let operands = checked.operands;
        let device = checked.stream.device();
        let Plan { instance, queries, keys } = Plan::new(checked)?;
        let kernel =
            |declaration: Declaration, blocks| Implementation::kernel(device, declaration.name, blocks);
        let mut all = Implementation::Empty;
        if queries.1 != 0 {
            all = kernel(instance.rows.declaration, queries.1);
        }
        for (index, tiles) in instance.tiles().enumerate() {
            let blocks = if index == 0 { queries.1 } else { keys.1 };
            if blocks != 0 {
                all = all.then(kernel(tiles.declaration, blocks));
            }
        }
        if operands.sinks.is_some() && queries.1 != 0 {
            let (name, blocks) = launch_of::<f32>(checked.problem.heads);
            all = all.then(Implementation::kernel(device, name, blocks));
        }
        let [q, k] = checked.are_in_place();
        let in_place = [q, k, is_aligned(operands.v), is_aligned(self.dy), is_aligned(self.y)];
        let all = all.with_copies(in_place.into_iter().filter(|is| !is).count());
        match &operands.rotary {
            Some(rotary) => Ok(operands.rotary_implementation(rotary)?.then(all)),
            None => Ok(all),
        }
    }

    /// Launches the kernels that compute the gradients that are asked for.
    pub(super) fn launch(
        &self,
        checked: &Checked<'_, '_, T, T>,
        outputs: AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        let Plan { instance, queries, keys } = Plan::new(checked)?;
        let (operands, problem, stream) = (checked.operands, &checked.problem, &checked.stream);
        let AttentionGradientOutputs { dq, dk, dv, dsinks, adds } = outputs;
        let [dq, dk, dv] = [dq.as_deref(), dk.as_deref(), dv.as_deref()];
        let [q, k] = [aligned(operands.q, stream)?, aligned(operands.k, stream)?];
        let [v, dy] = [aligned(operands.v, stream)?, aligned(self.dy, stream)?];
        let y = aligned(self.y, stream)?;
        let count = problem.all_heads() * problem.rows;
        let mut rows = Tensor::<f32>::uninit_on(stream, [count, ROW_NUMBERS as usize])?;
        let parts = if problem.is_packed { problem.rows } else { problem.batch * problem.rows };
        let mut of_sinks = match &dsinks {
            // Rows of no sequence add nothing.
            Some(_) => Some(Tensor::<f32>::zeros_on(stream, [parts, problem.heads])?),
            None => None,
        };
        let null = || Strided { base: GlobalMut::new(0), sequence: 0, row: 0, head: 0 };
        let place = |tensor: Option<&Tensor<T>>| tensor.map_or_else(null, strided);
        let tensors = GradientTensors {
            q: strided(&q),
            k: strided(&k),
            v: strided(&v),
            dy: strided(&dy),
            own: null(),
            dv: place(dv),
            rows: Global::new(rows.arg_mut().address()),
            columns: problem.width as u32,
            value_columns: problem.value_width as u32,
        };
        let sequences = operands.sequences();
        let row_params = RowParams {
            y: strided(&y),
            dy: strided(&dy),
            lse: self.lse.arg(),
            sinks: operands.sinks.map_or(Global::new(0), Tensor::arg),
            rows: rows.arg_mut(),
            dsinks: of_sinks.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut),
            columns: problem.value_width as u32,
            reserved: 0,
            sizes: queries.0,
            sequences,
        };
        let score = checked.score_operands();
        let exchanged_sequences = Sequences {
            offsets_q: sequences.offsets_k,
            offsets_k: sequences.offsets_q,
            lengths_q: sequences.lengths_k,
            lengths_k: sequences.lengths_q,
        };
        let of_queries = (
            GradientTensors { own: place(dq), ..tensors },
            score,
            GradientParams { sizes: queries.0, sequences },
        );
        let of_keys = (
            GradientTensors { own: place(dk), ..tensors },
            exchanged(score),
            GradientParams { sizes: keys.0, sequences: exchanged_sequences },
        );
        let mut used: Vec<&dyn Operand> = vec![&q, &k, &v, &dy, &y, self.lse, &rows];
        used.extend([dq, dk, dv].into_iter().flatten().map(|output| output as &dyn Operand));
        used.extend(of_sinks.as_ref().map(|of_sinks| of_sinks as &dyn Operand));
        used.extend(operands.options());
        let [has_dq, has_dk, has_dv] = [dq, dk, dv].map(|output| output.is_some());
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and device of the operands have been checked; offsets and lengths are bounded by the kernels, and there is room for the numbers of
            // each row. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe {
                if queries.1 != 0 {
                    (instance.rows.launch)(stream, queries.1, (row_params,))?;
                    if has_dq {
                        (instance.queries.launch)(stream, queries.1, of_queries)?;
                    }
                }
                if keys.1 == 0 {
                    return Ok(());
                }
                match instance.keys {
                    KeyKernels::Both(both) if has_dk || has_dv => (both.launch)(stream, keys.1, of_keys)?,
                    KeyKernels::Both(_) => {}
                    KeyKernels::Apart { keys: own, values } => {
                        if has_dk {
                            (own.launch)(stream, keys.1, of_keys)?;
                        }
                        if has_dv {
                            (values.launch)(stream, keys.1, of_keys)?;
                        }
                    }
                }
            }
            Ok(())
        })?;
        column_sums(stream, [of_sinks.as_ref().zip(dsinks), None], adds)
    }
}
