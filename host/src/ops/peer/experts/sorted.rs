//! The launches that evaluate the experts of many tokens in the order of the table: how tokens are divided into groups, and which
//! kernels run.

use warpsmith_dsl::experts::{
    BATCH, ExpertParams, ExpertRows, GROUP_TOKENS, GROUP_UNITS, LANES, SortedExperts, SortedParams,
};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::expert_mlp_sorted::{expert_mlp_order, expert_mlp_outputs, expert_mlp_products};

use crate::device::{Device, Properties};
use crate::error::Result;
use crate::experts::{ExpertFormat, ExpertLayout};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// The arguments of the kernels that go through u and through v.
type ProductArgs = (Global<u8>, Global<u32>, Global<f32>, GlobalMut<f32>, ExpertParams, SortedParams);
type OutputArgs = (Global<u32>, Global<f32>, GlobalMut<u8>, ExpertParams, SortedParams);

/// Launches so many blocks of a kernel with these arguments.
type Launch<A> = unsafe fn(&Device, &Stream, u32, A) -> Result<()>;

/// The kernels for a format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// What they declare: that of u first.
    pub(super) declarations: [Declaration; 2],
    products: Launch<ProductArgs>,
    outputs: Launch<OutputArgs>,
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As the kernel, until the stream's work is done.
unsafe fn launch<K: Kernel>(device: &Device, stream: &Stream, blocks: u32, args: K::Args) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

impl Kernels {
    /// Those of a format; none for formats of which rows are so short that it is not reading them that takes the time.
    pub(super) fn of(format: ExpertFormat) -> Option<Self> {
        match format {
            ExpertFormat::F32 => Some(Self::with::<
                expert_mlp_products<SortedExperts<f32>>,
                expert_mlp_outputs<SortedExperts<f32>>,
            >()),
            ExpertFormat::F16 => Some(Self::with::<
                expert_mlp_products<SortedExperts<F16>>,
                expert_mlp_outputs<SortedExperts<F16>>,
            >()),
            ExpertFormat::Bf16 => Some(Self::with::<
                expert_mlp_products<SortedExperts<Bf16>>,
                expert_mlp_outputs<SortedExperts<Bf16>>,
            >()),
            _ => None,
        }
    }

    fn with<P: Kernel<Args = ProductArgs>, O: Kernel<Args = OutputArgs>>() -> Self {
        Self { declarations: [P::DECLARATION, O::DECLARATION], products: launch::<P>, outputs: launch::<O> }
    }

    /// Groups that a block has: one for each warp.
    fn groups_of_block(&self) -> usize {
        (self.declarations[0].block[0] / LANES) as usize
    }

    /// The groups whose warps a device has room for at the same time.
    pub(super) fn groups_at_once(&self, properties: &Properties) -> usize {
        let [kernel, _] = self.declarations;
        let shared = kernel.shared_bytes + properties.reserved_shared_per_block;
        let blocks =
            kernel.min_blocks_per_sm.min(properties.shared_per_multiprocessor / shared.max(1)).max(1);
        (properties.multiprocessors * blocks) as usize * self.groups_of_block()
    }

    /// The blocks that have so many groups.
    pub(super) fn blocks(&self, groups: usize) -> u32 {
        // Fewer than 2³¹ tokens.
        groups.div_ceil(self.groups_of_block()) as u32
    }
}

/// How tokens are worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Tokens at a time: no more than have a warp each group at the same time.
    pub(super) tokens: usize,
    /// Tokens of a group.
    pub(super) group: usize,
    /// Units that a group's list has room for.
    room: usize,
    /// Parts of the table are of 2 to this power rows.
    part_bits: u32,
}

/// Units that a token has in a part of the table, or up to twice as many, if experts are used alike. With more of them x and y are in registers for
/// longer, but rows have to be in the cache for longer too: of 1, 2, 4 and 8, on an H100, 2 and 4 are best.
const OF_PART: usize = 4;

impl Plan {
    /// For `tokens` tokens of `units` hidden units, at least one each, and a table of `rows` rows; none if a token has too many. As few tokens at a
    /// time as take no more passes through the table than are needed, in groups that are as small as that allows: so all warps have work.
    ///
    /// The parts depend on units and rows alone, so that the order in which a token's units are added up does, too.
    pub(super) fn new(
        kernels: &Kernels,
        [tokens, units, rows]: [usize; 3],
        properties: &Properties,
    ) -> Option<Self> {
        let most = (GROUP_UNITS as usize / units.max(1)).min(GROUP_TOKENS as usize);
        if most == 0 || units == 0 {
            return None;
        }
        let groups = kernels.groups_at_once(properties);
        let passes = tokens.div_ceil(groups * most).max(1);
        let tokens = tokens.div_ceil(passes).max(1);
        let group = tokens.div_ceil(groups);
        let room = (group * units).next_multiple_of(BATCH as usize);
        let of_part = (rows.saturating_mul(OF_PART)).div_ceil(units).max(1);
        // There are fewer than 2³² rows.
        let part_bits = of_part.next_power_of_two().ilog2().min(u32::BITS - 1);
        Some(Self { tokens, group, room, part_bits })
    }

    /// The groups of so many tokens.
    pub(super) fn groups(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.group)
    }
}

/// Where the operands are.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) x: Global<u8>,
    pub(super) ids: Global<u32>,
    pub(super) gates: Global<f32>,
    pub(super) rows: ExpertRows,
    pub(super) y: GlobalMut<u8>,
    /// Bytes of an element of X and Y.
    pub(super) size: u64,
}

/// What launches leave for those after them: units, their gates, and their products.
pub(super) struct Workspace {
    units: Tensor<u32>,
    gates: Tensor<f32>,
    products: Tensor<f32>,
    vectors: u32,
}

impl Workspace {
    /// For the launches of a plan.
    pub(super) fn new(stream: &Stream, layout: &ExpertLayout, plan: &Plan) -> Result<Self> {
        let (units, vectors) = (plan.groups(plan.tokens) * plan.room, if layout.is_gated() { 2 } else { 1 });
        Ok(Self {
            units: Tensor::uninit_on(stream, [units, 2])?,
            gates: Tensor::uninit_on(stream, [units])?,
            products: Tensor::uninit_on(stream, [vectors, units])?,
            vectors: vectors as u32,
        })
    }

    pub(super) fn operands(&self) -> [&dyn Operand; 3] {
        [&self.units, &self.gates, &self.products]
    }
}

/// Launches everything for `tokens` tokens, whose x and y are chunks of so many.
///
/// # Safety
///
/// X and Y are valid for reads and writes of so many rows, as `params` says that they are, `ids` and `gates` for so many lists.
/// Rows are valid for reads wherever `rows` says that they are, and have the kernels' format. Nothing else uses what is
/// written, the workspace too, nor writes what is read,
/// until the stream's work is done.
pub(super) unsafe fn run(
    stream: &Stream,
    kernels: &Kernels,
    plan: &Plan,
    workspace: &Workspace,
    operands: Operands,
    params: ExpertParams,
    [tokens, input_chunks, output_chunks]: [usize; 3],
) -> Result<()> {
    let device = stream.device();
    let units = workspace.units.arg();
    let (gates, products) = (workspace.gates.arg(), workspace.products.arg());
    let slices = |chunks: u32| (0..chunks.max(1)).step_by(LANES as usize);
    let [input_chunks, output_chunks] = [input_chunks as u32, output_chunks as u32];
    for first in (0..tokens).step_by(plan.tokens) {
        let count = plan.tokens.min(tokens - first);
        let groups = plan.groups(count);
        let blocks = kernels.blocks(groups);
        let step = SortedParams {
            tokens: count as u32,
            group: plan.group as u32,
            room: plan.room as u32,
            first_chunk: 0,
            vector: 0,
            ends: 0,
            part_bits: plan.part_bits,
            reserved: 0,
        };
        let lists = (first * params.experts as usize) as u64;
        let x = Global::new(operands.x.address() + first as u64 * params.stride_x * operands.size);
        let y = GlobalMut::new(operands.y.address() + first as u64 * params.stride_y * operands.size);
        // SAFETY: the caller's promise, for these of the tokens; the workspace has room for them, and each launch reads what those before it
        // have written.
        unsafe {
            let (ids, of_token) = (operands.ids.offset(lists), operands.gates.offset(lists));
            let (units_out, gates_out) = (GlobalMut::new(units.address()), GlobalMut::new(gates.address()));
            let args = (ids, of_token, operands.rows, units_out, gates_out, params, step);
            launch::<expert_mlp_order>(device, stream, groups as u32, args)?;
            for vector in 0..workspace.vectors {
                for first_chunk in slices(input_chunks) {
                    let is_last = vector + 1 == workspace.vectors && first_chunk + LANES >= input_chunks;
                    let step = SortedParams { first_chunk, vector, ends: is_last.into(), ..step };
                    let products = GlobalMut::new(products.address());
                    (kernels.products)(device, stream, blocks, (x, units, gates, products, params, step))?;
                }
            }
            for first_chunk in slices(output_chunks) {
                let step = SortedParams { first_chunk, ..step };
                (kernels.outputs)(device, stream, blocks, (units, products, y, params, step))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use warpsmith_dsl::experts::{GROUP_TOKENS, GROUP_UNITS};

    use super::{Kernels, Plan};
    use crate::Device;
    use crate::device::{EmulatorOptions, Properties};
    use crate::ops::peer::ExpertFormat;

    fn h100() -> Properties {
        let device = Device::emulator_with(EmulatorOptions {
            compute_capability: (9, 0),
            ..EmulatorOptions::default()
        });
        device.properties().clone()
    }

    fn plan(sizes: [usize; 3]) -> Option<Plan> {
        let kernels = Kernels::of(ExpertFormat::Bf16).expect("there are kernels");
        Plan::new(&kernels, sizes, &h100())
    }

    #[test]
    fn groups_are_as_small_as_a_single_pass_allows() {
        let at_once = 132 * 4 * 4;
        for (tokens, group) in [(1, 1), (at_once, 1), (at_once + 1, 2), (16384, 8), (8 * at_once, 8)] {
            let plan = plan([tokens, 128, 1 << 20]).expect("units are few");
            assert_eq!((plan.tokens, plan.group), (tokens, group), "{tokens}");
            assert!(plan.groups(tokens) <= at_once);
        }
        let plan = plan([65536, 128, 1 << 20]).expect("units are few");
        assert_eq!((plan.tokens, plan.group), (16384, 8), "four passes");
    }

    #[test]
    fn lists_fit_and_parts_depend_on_units_and_rows_alone() {
        for units in [1, 3, 31, 128, 500, 1024, 1025, 2048] {
            for rows in [1, 61, 1000, 1 << 20, u32::MAX as usize] {
                let of = |tokens| plan([tokens, units, rows]).expect("units are few");
                for tokens in [1, 100, 5000, 100_000] {
                    let plan = of(tokens);
                    let parts = ((rows - 1) >> plan.part_bits) + 1;
                    assert!(plan.group * units <= plan.room && plan.room < GROUP_UNITS as usize + 32);
                    assert!(plan.group <= GROUP_TOKENS as usize);
                    assert!(parts * plan.group <= GROUP_UNITS as usize, "{units} {rows}: {plan:?}");
                    assert_eq!(plan.part_bits, of(1).part_bits);
                }
            }
        }
        assert_eq!(plan([5, 2049, 100]), None);
        assert_eq!(plan([5, 0, 100]), None);
    }

    #[test]
    fn formats_of_short_rows_have_no_kernels() {
        for format in ExpertFormat::ALL {
            assert_eq!(Kernels::of(format).is_some(), format.bits() >= 16, "{format}");
        }
    }
}
