//! How a problem's arguments are made and its kernel is launched.

use warpsmith_dsl::attention::hopper::{Ends, Rows};
use warpsmith_dsl::attention::portable::{Fp8Keys, Pages, Parts, Strided, Tensors};
use warpsmith_dsl::attention::scores::{PAIRED_BIAS, PAIRED_MASK, ScoreOperands, ScoreStrides};
use warpsmith_dsl::attention::softmax::LOG2_E;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, TensorMap};
use warpsmith_dsl::warpgroup::{BOX_COLUMNS, ROWS, WARP_ROWS};
use warpsmith_emulator::{
    Config, Interleave, L2Promotion, LaunchConfig, LaunchError, Machine, Module, OobFill, Report, Swizzle,
    TensorMap as EncodedMap, TensorMapArguments, TensorType,
};
use warpsmith_kernels::attention_hopper::AttentionParams as HopperParams;
use warpsmith_kernels::attention_shapes::AttentionParams;

use super::super::Problem;
use super::case::{Expected, Layout, Operands, Size};
use super::number::Number;

/// A kernel, as far as launches depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instance {
    pub(super) of: Number,
    /// Rows of a tile and keys of a block.
    pub(super) rows: u32,
    pub(super) keys: u32,
    /// The most columns.
    pub(super) columns: u32,
    /// The most columns of values.
    pub(super) values: u32,
    pub(super) is_hopper: bool,
    /// Whether it has operands that change scores.
    pub(super) changes: bool,
    /// Whether it is for few rows.
    pub(super) is_few: bool,
    /// Whether it is a Hopper kernel whose keys are dealt to several blocks.
    pub(super) is_dealt: bool,
    /// The type of keys and values, if they have 8 bits.
    pub(super) fp8: Option<Number>,
}

pub(super) struct Case {
    name: String,
    instance: Instance,
    size: Size,
    operands: Operands,
}

impl Case {
    pub(super) fn new(instance: Instance, size: Size) -> Self {
        let [_, values] = size.columns;
        let sequences = if size.offsets.is_some() { 1 } else { size.batch };
        // The copy engine wants whole chunks; without it rows may begin anywhere.
        let (align, gap) = if instance.is_hopper && !instance.is_dealt { (8, 8) } else { (1, 1) };
        let o = Layout::new([sequences, size.rows, size.heads], values, align, gap);
        let operands = size.operands(instance.of, instance.fp8.unwrap_or(instance.of), o);
        Self { name: format!("{size:?}"), instance, size, operands }
    }

    fn tiles(&self) -> u32 {
        let (rows, of_tile) = (self.size.rows * self.size.pack(), self.instance.rows);
        // Each packed sequence may begin a tile of its own.
        if self.size.offsets.is_some() { rows / of_tile + self.size.batch } else { rows.div_ceil(of_tile) }
    }

    fn sizes(&self) -> Sizes {
        let size = &self.size;
        let is_packed = size.offsets.is_some();
        let heads = size.heads / size.pack();
        Sizes {
            lse_batch: if is_packed { 0 } else { u64::from(size.heads * size.rows) },
            lse_head: size.rows.into(),
            batch: size.batch,
            heads: size.heads,
            group: size.group,
            pack: size.pack(),
            rows: size.rows,
            keys: size.keys,
            tiles: self.tiles(),
            section: size.section.min(heads),
            rows_of_heads: if is_packed { heads } else { heads * size.batch },
            reserved: 0,
            window: size.window,
        }
    }
}

/// A machine, and memory for a launch.
pub(super) struct Memory<'a>(pub(super) &'a Machine);

impl Memory<'_> {
    /// Where these bytes are; null for none.
    pub(super) fn place(&self, bytes: &[u8]) -> Result<u64, LaunchError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let address = self.0.allocate(bytes.len() as u64)?;
        self.0.write(address, bytes)?;
        Ok(address)
    }

    pub(super) fn words(&self, words: &[u32]) -> Result<Global<u32>, LaunchError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.place(&bytes).map(Global::new)
    }

    pub(super) fn numbers(&self, numbers: &[f32]) -> Result<Global<f32>, LaunchError> {
        let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
        self.words(&bits).map(|words| Global::new(words.address()))
    }

    pub(super) fn sequences(&self, size: &Size) -> Result<Sequences, LaunchError> {
        let words = |words: Option<&Vec<u32>>| words.map_or(Ok(Global::new(0)), |words| self.words(words));
        let offsets = size.offsets.as_ref();
        Ok(Sequences {
            offsets_q: words(offsets.map(|[q, _]| q))?,
            offsets_k: words(offsets.map(|[_, k]| k))?,
            lengths_q: words(size.lengths[0].as_ref())?,
            lengths_k: words(size.lengths[1].as_ref())?,
        })
    }

    fn fp8_keys(&self, size: &Size, operands: &Operands, of: Number) -> Result<Fp8Keys, LaunchError> {
        let [k_head, v_head] = size.scales.map(|scales| u32::from(scales == Some(true)));
        Ok(Fp8Keys {
            k_scale: self.numbers(&operands.scales[0])?,
            v_scale: self.numbers(&operands.scales[1])?,
            k_head,
            v_head,
            is_e5m2: u32::from(of == Number::E5m2),
            reserved: 0,
        })
    }

    pub(super) fn score_operands(
        &self,
        size: &Size,
        operands: &Operands,
    ) -> Result<ScoreOperands, LaunchError> {
        let strides = |[sequence, head, row]: [u64; 3]| ScoreStrides { sequence, head, row, key: 1 };
        let of_scores = strides(size.strides([size.rows, size.keys]));
        let [block_rows, block_keys] = size.blocks.unwrap_or([1, 1]);
        Ok(ScoreOperands {
            bias: Global::new(self.place(&operands.bias)?),
            bias_strides: of_scores,
            mask: Global::new(self.place(&operands.mask)?),
            mask_strides: of_scores,
            blocks: Global::new(self.place(&operands.blocks)?),
            block_strides: strides(size.block_strides()),
            slopes: self.numbers(&operands.slopes)?,
            slopes_sequence: size.heads.into(),
            sinks: self.numbers(&operands.sinks)?,
            block_rows,
            block_keys,
            scale: size.scale,
            cap: size.cap,
            counts_from_last: size.window.is_bottom_right,
            // Of an even number of keys every place is even.
            paired: if size.keys.is_multiple_of(2) { PAIRED_BIAS | PAIRED_MASK } else { 0 },
        })
    }
}

/// Launches the only kernel of `module`.
pub(super) fn launch<A: KernelArgs>(
    machine: &Machine,
    module: &Module,
    shared_bytes: u32,
    blocks: u32,
    arguments: A,
) -> Result<Report, LaunchError> {
    let Some(kernel) = module.kernels().next() else { return Ok(Report::default()) };
    let config = LaunchConfig {
        grid: [blocks, 1, 1],
        block: kernel.reqntid.unwrap_or([1; 3]),
        dynamic_shared: shared_bytes,
        ..LaunchConfig::default()
    };
    super::super::launch(machine, module, &kernel.name, &config, arguments)
}

/// Whether what is at `address` is as expected.
pub(super) fn is_right(
    machine: &Machine,
    address: u64,
    of: Number,
    expected: &Expected,
) -> Result<bool, LaunchError> {
    if expected.len() == 0 {
        return Ok(true);
    }
    let mut got = expected.before(of);
    machine.read(address, &mut got)?;
    Ok(expected.is(got.chunks_exact(of.bytes()).map(|bytes| of.get(bytes))))
}

/// The map of a tensor as `Rows` says, with boxes of so many rows; of one that ends with each sequence also the rows from one to the next.
pub(super) fn map(of: Number, address: u64, layout: &Layout, box_rows: u32, ends: Option<u32>) -> TensorMap {
    let [sequences, rows, heads] = layout.axes.map(|length| u64::from(length.max(1)));
    let columns = u64::from(layout.columns);
    let (row, head, sequence) = (2 * layout.row, 2 * layout.head, 2 * layout.sequence);
    let far = u64::from(Rows::FAR);
    let (dims, strides) = match ends {
        Some(apart) => {
            let all = (sequences - 1) * u64::from(apart) + rows;
            ([columns, far, all + 1, heads, far + 1], [row, row, head, Rows::WRAP - row])
        }
        None => ([columns, rows, 1, heads, sequences], [row, row, head, sequence]),
    };
    let encoded = EncodedMap::encode(&TensorMapArguments {
        data_type: if of == Number::F16 { TensorType::F16 } else { TensorType::Bf16 },
        address,
        dims: &dims,
        strides: &strides,
        box_dims: &[BOX_COLUMNS, box_rows, 1, 1, 1],
        element_strides: &[1; 5],
        interleave: Interleave::None,
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
        oob_fill: OobFill::Zeros,
    });
    let encoded = encoded.expect("the sizes of the cases make tensor maps");
    let words = std::array::from_fn(|at| {
        u64::from_le_bytes(std::array::from_fn(|byte| encoded.as_bytes()[8 * at + byte]))
    });
    TensorMap::from_words(words)
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let memory = Memory(&machine);
        let Self { instance, size, operands, .. } = self;
        let of = instance.of;
        let [q, k, v] = [&operands.q, &operands.k, &operands.v];
        let [q_at, k_at, v_at] = [memory.place(&q.bytes)?, memory.place(&k.bytes)?, memory.place(&v.bytes)?];
        let o_at = memory.place(&operands.o.before(of))?;
        let lse_at = memory.place(&operands.lse.before(Number::F32))?;
        let (sizes, sequences) = (self.sizes(), memory.sequences(size)?);
        let changes = memory.score_operands(size, operands)?;
        let lse = GlobalMut::<f32>::new(lse_at);
        let tiles = sizes.tiles * sizes.rows_of_heads;
        let strided = |address: u64, layout: &Layout| Strided {
            base: GlobalMut::new(address),
            sequence: layout.sequence,
            row: layout.row,
            head: layout.head,
        };
        let pages = Pages {
            table: memory.words(&operands.table)?,
            sequence: size.pages().into(),
            size: size.page.unwrap_or(1),
            count: size.batch * size.pages() + 1,
        };
        let tensors = Tensors {
            q: strided(q_at, &q.layout),
            k: strided(k_at, &k.layout),
            v: strided(v_at, &v.layout),
            o: strided(o_at, &operands.o_layout),
            pages,
            columns: size.columns[0],
            value_columns: size.columns[1],
        };
        let sums = memory.place(&operands.part_sums.before(Number::F32))?;
        let part_lse = memory.place(&operands.part_lse.before(Number::F32))?;
        let parts = Parts {
            sums: GlobalMut::new(sums),
            lse: GlobalMut::new(part_lse),
            count: size.parts(),
            keys: size.part.unwrap_or(size.keys.next_multiple_of(instance.keys)),
        };
        let (report, mut is_sound) = if instance.is_hopper {
            let is_packed = size.offsets.is_some();
            let apart = (v.layout.sequence / v.layout.row) as u32;
            let ends_v = is_packed || size.lengths[1].is_some();
            let taken = memory.words(&[0])?;
            let p = HopperParams {
                sizes,
                sequences,
                ends: Ends { v: ends_v.into(), v_sequence: apart, o: is_packed.into(), reserved: 0 },
                taken: GlobalMut::new(taken.address()),
                factor: size.scale * LOG2_E,
                reserved: 0,
            };
            let map_k = map(of, k_at, &k.layout, instance.keys, None);
            let map_v = map(of, v_at, &v.layout, instance.keys, ends_v.then_some(apart));
            let report = if instance.is_dealt {
                let arguments = (map_k, map_v, tensors, lse, parts, changes, p);
                let blocks = size.grid.min(tiles * parts.count);
                launch(&machine, module, shared_bytes, blocks, arguments)?
            } else {
                let map_q = map(of, q_at, &q.layout, ROWS, None);
                let map_o = map(of, o_at, &operands.o_layout, WARP_ROWS, is_packed.then_some(0));
                let arguments = (map_q, map_k, map_v, map_o, lse, changes, p);
                launch(&machine, module, shared_bytes, size.grid.min(tiles), arguments)?
            };
            let mut left = [0; 4];
            machine.read(taken.address(), &mut left)?;
            (report, left == [0; 4])
        } else {
            let p = AttentionParams { sizes, sequences };
            let blocks = tiles * parts.count;
            let report = if let Some(of_keys) = instance.fp8 {
                let fp8 = memory.fp8_keys(size, operands, of_keys)?;
                launch(&machine, module, shared_bytes, blocks, (tensors, lse, parts, changes, fp8, p))?
            } else {
                launch(&machine, module, shared_bytes, blocks, (tensors, lse, parts, changes, p))?
            };
            (report, true)
        };
        is_sound &= is_right(&machine, sums, Number::F32, &operands.part_sums)?
            && is_right(&machine, part_lse, Number::F32, &operands.part_lse)?;
        is_sound &= is_right(&machine, o_at, of, &operands.o)?;
        is_sound &= is_right(&machine, lse_at, Number::F32, &operands.lse)?;
        Ok((report, is_sound))
    }
}
