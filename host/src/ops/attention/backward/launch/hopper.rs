//! Tiles of gradients by Hopper's kernels.

use warpsmith_dsl::attention::gradient::hopper::{HopperElement, HopperShape, HopperTensors, HopperTile};
use warpsmith_dsl::attention::gradient::{
    Gives, GivesKeys, GivesKeysAndValues, GivesQueries, GivesValues, GradientParams,
};
use warpsmith_dsl::launch::{Declaration, Kernel, TensorMap};
use warpsmith_dsl::warpgroup::{BOX_COLUMNS, ROWS};
use warpsmith_kernels::attention_gradient_hopper::{
    Gradient64, Gradient64By96, Gradient96, Gradient96By64, Gradient128, Gradient128By64, Gradient192,
    Gradient256, attention_gradient_hopper,
};

pub(super) use warpsmith_dsl::attention::gradient::hopper::BLOCK_ROWS;

use super::{Launch, Launcher, Plan, TileTensors, exchanged_sequences};
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::attention::AttentionInput;
use crate::ops::attention::check::{Checked, leading_strides};
use crate::ops::attention::launch::Way;
use crate::ops::attention::launch::hopper::all_rows;
use crate::ops::gemm::is_hopper;
use crate::tensor::{Element, Tensor};

/// The arguments of tiles.
type Args = (TensorMap, TensorMap, TensorMap, TensorMap, HopperTensors, GradientParams);

/// A kernel of tiles, and the others of a block.
#[derive(Clone, Copy)]
struct Tile {
    launcher: Launcher<Args>,
    others: u32,
}

impl Tile {
    fn of<T, S, G>() -> Self
    where
        T: HopperElement<S>,
        S: HopperShape,
        G: Gives,
        attention_gradient_hopper<T, S, G>: Kernel<Args = Args>,
    {
        let launcher = Launcher::of::<attention_gradient_hopper<T, S, G>>();
        Self { launcher, others: HopperTile::<S, G>::OTHERS }
    }
}

/// The kernels for heads of so many columns.
#[derive(Clone, Copy)]
pub(super) struct Instance {
    queries: Tile,
    /// Gives dV, too, if no other does.
    keys: Tile,
    values: Option<Tile>,
}

macro_rules! instances {
    ($($name:ident $device:ident),*) => {
        $(
            pub(super) fn $name(columns: usize) -> Option<Self> {
                use warpsmith_dsl::float::$device;
                Some(match columns {
                    ..=64 => instances!(@both $device Gradient64 Gradient64By96),
                    ..=96 => instances!(@both $device Gradient96 Gradient96By64),
                    ..=128 => instances!(@both $device Gradient128 Gradient128By64),
                    ..=192 => instances!(@apart $device Gradient192),
                    ..=256 => instances!(@apart $device Gradient256),
                    _ => return None,
                })
            }
        )*
    };
    (@both $device:ident $of_queries:ident $of_keys:ident) => {
        Self {
            queries: Tile::of::<$device, $of_queries, GivesQueries>(),
            keys: Tile::of::<$device, $of_keys, GivesKeysAndValues>(),
            values: None,
        }
    };
    (@apart $device:ident $shape:ident) => {
        Self {
            queries: Tile::of::<$device, $shape, GivesQueries>(),
            keys: Tile::of::<$device, $shape, GivesKeys>(),
            values: Some(Tile::of::<$device, $shape, GivesValues>()),
        }
    };
}

/// Whether Hopper's kernels compute the gradients.
pub(super) fn serves<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> bool {
    let problem = &checked.problem;
    let properties = checked.stream.device().properties();
    // The copy engine counts rows of all sequences in 32 bits, where tensors end with each of them.
    let [ends_q, ends_k] = ends(checked);
    let is_counted = |rows: usize| (problem.batch as u64).saturating_mul(rows as u64) < 1 << 31;
    is_hopper(properties.compute_capability)
        && is_built("attention_gradient_hopper")
        && checked.operands.way != Some(Way::Whole)
        && !problem.changes_scores()
        && (!ends_q || is_counted(problem.rows))
        && (!ends_k || is_counted(problem.keys))
        // A map has at least one row.
        && ![problem.rows, problem.keys, problem.heads, problem.width, problem.value_width].contains(&0)
}

/// Whether tensors of rows, and those of keys, end where sequences do.
pub(super) fn ends<T: AttentionInput>(checked: &Checked<'_, '_, T, T>) -> [bool; 2] {
    let is_packed = checked.problem.is_packed;
    checked.operands.lengths.map(|lengths| is_packed || lengths.is_some())
}

impl Instance {
    instances!(f16 F16, bf16 Bf16);

    /// The kernels of queries, of keys, and of values, where the latter are apart.
    pub(super) fn declarations(&self) -> [Option<Declaration>; 3] {
        [Some(self.queries), Some(self.keys), self.values]
            .map(|tile| tile.map(|tile| tile.launcher.declaration))
    }

    /// The most queries that tiles of keys have in a block.
    pub(super) fn queries_of_block(&self) -> usize {
        self.values.map_or(0, |values| values.others).max(self.keys.others) as usize
    }

    /// The launches of what is asked for.
    pub(super) fn launches<T: AttentionInput>(
        &self,
        tensors: &TileTensors<'_, T>,
        plan: &Plan,
        checked: &Checked<'_, '_, T, T>,
    ) -> Result<Vec<Launch<'static>>> {
        let problem = &checked.problem;
        let sequences = checked.operands.sequences();
        let [dq, dk, dv] = tensors.places();
        let [ends_q, ends_k] = ends(checked);
        let (q, dy) = (
            Rows {
                of: tensors.q,
                rows: problem.rows,
                heads: problem.heads,
                columns: problem.width,
                ends: ends_q,
            },
            Rows {
                of: tensors.dy,
                rows: problem.rows,
                heads: problem.heads,
                columns: problem.value_width,
                ends: ends_q,
            },
        );
        let k = Rows {
            of: tensors.k,
            rows: problem.keys,
            heads: problem.key_heads,
            columns: problem.width,
            ends: ends_k,
        };
        let v = Rows { of: tensors.v, columns: problem.value_width, ..k };
        let batch = if problem.is_packed { 1 } else { problem.batch };
        let args = |tile: Tile, own: [Rows<'_, T>; 2], others: [Rows<'_, T>; 2], params| -> Result<Args> {
            let [(first, others_sequence), (second, second_sequence)] =
                [others[0].others(batch, tile.others)?, others[1].others(batch, tile.others)?];
            let tensors = HopperTensors {
                own: dq,
                dv,
                rows: tensors.rows,
                columns: problem.width as u32,
                value_columns: problem.value_width as u32,
                scale: problem.scale,
                factor: problem.scale * std::f32::consts::LOG2_E,
                ends: others[0].ends.into(),
                others_sequence,
                second_sequence,
                reserved: 0,
            };
            Ok((own[0].own(batch)?, own[1].own(batch)?, first, second, tensors, params))
        };
        let of_queries = GradientParams { sizes: plan.queries.0, sequences };
        let of_keys = GradientParams { sizes: plan.keys.0, sequences: exchanged_sequences(sequences) };
        let [has_dq, has_dk, has_dv] = tensors.outputs.map(|output| output.is_some());
        let mut launches = Vec::new();
        // SAFETY: operands have been checked; the launches are made while the tensors are there.
        unsafe {
            if has_dq && plan.queries.1 != 0 {
                let args = args(self.queries, [q, dy], [k, v], of_queries)?;
                launches.push(self.queries.launcher.on(plan.queries.1, args));
            }
            let of_kernels = match self.values {
                None => [(self.keys, has_dk || has_dv), (self.keys, false)],
                Some(values) => [(self.keys, has_dk), (values, has_dv)],
            };
            for (tile, _) in of_kernels.into_iter().filter(|&(_, is)| is && plan.keys.1 != 0) {
                let (a, b, c, d, tensors, params) = args(tile, [k, v], [q, dy], of_keys)?;
                let args = (a, b, c, d, HopperTensors { own: dk, ..tensors }, params);
                launches.push(tile.launcher.on(plan.keys.1, args));
            }
        }
        Ok(launches)
    }
}

/// A tensor that tiles read, of which each head of a sequence has rows.
struct Rows<'a, T: Element> {
    of: &'a Tensor<T>,
    rows: usize,
    heads: usize,
    columns: usize,
    /// Whether it ends where sequences do, for those that read it as others.
    ends: bool,
}

// Derived ones would ask for it of the element type.
impl<T: Element> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element> Copy for Rows<'_, T> {}

impl<T: Element> Rows<'_, T> {
    fn axes(&self, batch: usize) -> [(usize, u64); 3] {
        let [of_sequences, of_rows, of_heads] = leading_strides(self.of);
        [(batch, of_sequences), (self.heads, of_heads), (self.rows, of_rows)]
    }

    /// The map for the tiles' own rows.
    fn own(&self, batch: usize) -> Result<TensorMap> {
        self.of.map_of_rows(self.axes(batch), self.columns, [ROWS, BOX_COLUMNS], false)
    }

    /// The map for blocks of so many others, and the rows from one sequence to the next.
    fn others(&self, batch: usize, others: u32) -> Result<(TensorMap, u32)> {
        let axes = self.axes(batch);
        let (axes, sequence) = if self.ends { all_rows(axes) } else { (axes, 0) };
        let map = self.of.map_of_rows(axes, self.columns, [others, BOX_COLUMNS], self.ends)?;
        Ok((map, sequence))
    }
}
