//! A step on a GPU or the emulator.

use warpsmith_dsl::adamw::{
    AdamWParams, AdamWRowsParams, KIND_F32, PIECE, ROWS_OF_BLOCK, RowsFlags, StepFlags,
};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_kernels::adamw::{
    adamw_prepare, adamw_row_square_sums, adamw_square_sums, adamw_update, adamw_update_rows,
};

use super::adamw::{AdamW, Parameter, STEP};
use super::operands::OfTensor;
use super::options::SecondMoment;
use super::tables::{Tables, is_aligned, kind_of};
use crate::error::{Error, Result};
use crate::ops::rows::{AnyTensor, with_tensor};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// The most blocks of a grid's second dimension.
const MOST_BLOCKS: usize = 65_535;

/// The launches for a gradient of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsLaunch {
    /// Rows that there is room for.
    room: usize,
    /// Pieces whose squares are added up.
    pub(super) pieces: usize,
    /// Blocks of the update.
    pub(super) grid: [usize; 2],
}

impl RowsLaunch {
    /// Those for a tensor's gradient; `None` if it has none of rows.
    pub(super) fn of(parameter: &Parameter, gradient: Option<&OfTensor<'_>>) -> Result<Option<Self>> {
        let Some(gradient) = gradient else { return Ok(None) };
        if gradient.rows.is_none() && !parameter.is_by_rows() {
            return Ok(None);
        }
        let [rows, ..] = parameter.sizes();
        let room = if gradient.rows.is_some() { gradient.room() } else { rows };
        Self::of_room(STEP, parameter, room).map(Some)
    }

    /// Those for a gradient with room for so many rows.
    pub(super) fn of_room(operation: &'static str, parameter: &Parameter, room: usize) -> Result<Self> {
        let [rows, vectors, columns] = parameter.sizes();
        let limit = |operand, quantity, actual: usize| {
            let (limit, actual) = (format!("at most {}", i32::MAX), actual.to_string());
            Err(Error::SizeLimit { operation, operand, quantity, limit, actual })
        };
        let fits = |number: usize| i32::try_from(number).is_ok();
        for (operand, quantity, number) in [
            ("weights", "number of rows", rows),
            ("weights", "number of vectors of a row", vectors),
            ("weights", "number of columns", columns),
            ("gradient", "number of rows", room),
        ] {
            if !fits(number) {
                return limit(operand, quantity, number);
            }
        }
        let elements = room.saturating_mul(vectors).saturating_mul(columns);
        let pieces = elements.div_ceil(PIECE as usize);
        if !fits(pieces) {
            return limit("gradient", "number of pieces of 4096 elements", pieces);
        }
        let is_empty = elements == 0;
        let blocks = if is_empty { 0 } else { room.div_ceil(ROWS_OF_BLOCK as usize) };
        Ok(Self { room, pieces, grid: [blocks, vectors.min(MOST_BLOCKS)] })
    }
}

/// The distances of a tensor's rows, and of the vectors of a row.
fn strides_of(parameter: &Parameter) -> [u64; 2] {
    with_tensor!(parameter.weights.any(), tensor => match *tensor.strides() {
        [row, vector, _] if parameter.is_experts => [row as u64, vector as u64],
        _ => [parameter.sizes()[2] as u64, 0],
    })
}

fn address_of(tensor: AnyTensor<'_>) -> u64 {
    with_tensor!(tensor, tensor => tensor.device_address())
}

impl AdamW {
    pub(super) fn step_on_device(
        &mut self,
        stream: &Stream,
        gradients: &[Option<OfTensor<'_>>],
    ) -> Result<()> {
        let (mut of_rows, mut by_rows) = (Vec::new(), Vec::new());
        for (number, (parameter, gradient)) in self.parameters.iter().zip(gradients).enumerate() {
            let launch = RowsLaunch::of(parameter, gradient.as_ref())?;
            by_rows.push(launch.is_some());
            of_rows
                .extend(launch.zip(gradient.as_ref()).map(|(launch, gradient)| (number, gradient, launch)));
        }
        let flags = self.flags();
        let has_sums = flags.has(StepFlags::HAS_SUMS);
        let pieces_of_rows: usize = of_rows.iter().map(|(_, _, launch)| launch.pieces).sum();
        if self.tables.is_none() {
            self.tables = Some(Tables::new(&self.device, &self.parameters, &self.groups)?);
        }
        let scale = self.loss_scale.unwrap_or_default();
        let Some(tables) = &mut self.tables else { return Ok(()) };
        tables.set_options(stream, &self.groups)?;
        tables.set_gradients(stream, gradients)?;
        let summed = if has_sums { pieces_of_rows } else { 0 };
        let [pieces, all_pieces] = tables.set_pieces(stream, &self.parameters, &by_rows, summed)?;
        let params = AdamWParams {
            history: self.history.arg_mut(),
            status: GlobalMut::new(self.status.arg_mut().address()),
            seed: self.seed,
            tensor_count: self.parameters.len() as u32,
            piece_count: all_pieces,
            flags,
            max_norm: self.max_norm.unwrap_or(f32::INFINITY),
            growth: scale.growth,
            backoff: scale.backoff,
            growth_interval: scale.growth_interval,
            ..tables.params()
        };
        let mut launches = Vec::with_capacity(of_rows.len());
        let mut first = u64::from(pieces);
        for (number, gradient, launch) in of_rows {
            let sums = GlobalMut::new(params.sums.address() + 4 * first);
            first += launch.pieces as u64;
            if launch.pieces > 0 {
                launches.push((self.rows_params(number, gradient, launch.room, &params, sums), launch));
            }
        }
        let device = &self.device;
        let (has_pieces, has_rows) = (pieces > 0, pieces_of_rows > 0);
        let squares = (has_sums && has_pieces).then(|| device.kernel::<adamw_square_sums>()).transpose()?;
        let row_squares =
            (has_sums && has_rows).then(|| device.kernel::<adamw_row_square_sums>()).transpose()?;
        let prepare = device.kernel::<adamw_prepare>()?;
        let update = has_pieces.then(|| device.kernel::<adamw_update>()).transpose()?;
        let update_rows = has_rows.then(|| device.kernel::<adamw_update_rows>()).transpose()?;
        let Some(tables) = &self.tables else { return Ok(()) };
        let mut operands: Vec<&dyn Operand> = vec![&self.history, &self.status];
        operands.extend(tables.operands());
        operands.extend(self.parameters.iter().flat_map(Parameter::operands));
        for gradient in gradients.iter().flatten() {
            operands.push(gradient.elements.operand());
            operands.extend(gradient.rows.iter().flatten().map(|&tensor| tensor as &dyn Operand));
        }
        stream.with_operands(&operands, || {
            // SAFETY: the tables and arguments say where the operands are, whose sizes and alignment they were made from; weights, moments and copies share no memory with
            // each other or with gradients. `with_operands` orders the work with their other uses.
            unsafe {
                if let Some(squares) = squares {
                    squares.launch(stream, [pieces, 1, 1], (params,))?;
                }
                if let Some(squares) = row_squares {
                    for (params, launch) in &launches {
                        squares.launch(stream, [launch.pieces as u32, 1, 1], (*params,))?;
                    }
                }
                prepare.launch(stream, [1, 1, 1], (params,))?;
                if let Some(update) = update {
                    update.launch(stream, [pieces, 1, 1], (params,))?;
                }
                if let Some(update) = update_rows {
                    for (params, launch) in &launches {
                        let [rows, vectors] = launch.grid.map(|blocks| blocks as u32);
                        update.launch(stream, [rows, vectors, 1], (*params,))?;
                    }
                }
                Ok(())
            }
        })
    }

    /// The arguments for a gradient of rows.
    fn rows_params(
        &self,
        number: usize,
        gradient: &OfTensor<'_>,
        room: usize,
        params: &AdamWParams,
        sums: GlobalMut<f32>,
    ) -> AdamWRowsParams {
        let parameter = &self.parameters[number];
        let [rows, vectors, columns] = parameter.sizes();
        let own = parameter.weights.any();
        let (own_strides, own_address) = (strides_of(parameter), address_of(own));
        let dense = [(vectors * columns) as u64, columns as u64];
        let (moving, strides, kind, rounded) = match &parameter.master {
            Some(master) => (master.device_address(), dense, KIND_F32, own_address),
            None => (own_address, own_strides, kind_of(own), 0),
        };
        let (of_gradient, gradient_kind) = (address_of(gradient.elements), kind_of(gradient.elements));
        let [means, squares] = parameter.moments.each_ref().map(Tensor::device_address);
        let is_shared = parameter.second_moment == SecondMoment::PerRow;
        let bytes = |kind: u32| if kind == KIND_F32 { 4 } else { 2 };
        let apart = |strides: [u64; 2]| strides.iter().all(|stride| stride.is_multiple_of(4));
        let is_gradient_aligned = is_aligned(of_gradient, bytes(gradient_kind));
        let all_aligned = columns.is_multiple_of(4)
            && is_gradient_aligned
            && is_aligned(moving, bytes(kind))
            && apart(strides)
            && (rounded == 0 || is_aligned(rounded, 2) && apart(own_strides))
            && is_aligned(means, 4)
            && (is_shared || is_aligned(squares, 4));
        let traits = [
            (all_aligned, RowsFlags::ALIGNED),
            (is_gradient_aligned, RowsFlags::GRADIENT_ALIGNED),
            (is_shared, RowsFlags::SHARED_SQUARES),
        ];
        let [ids, count] = gradient.rows.map_or([0; 2], |of| of.map(Tensor::device_address));
        AdamWRowsParams {
            ids: Global::new(ids),
            count: Global::new(count),
            gradient: of_gradient,
            weights: moving,
            strides,
            means,
            squares,
            rounded,
            rounded_strides: own_strides,
            scalars: params.scalars,
            status: params.status,
            sums,
            seed: self.seed,
            tensor: number as u32,
            rows: rows as u32,
            room: room as u32,
            vectors: vectors as u32,
            columns: columns as u32,
            kinds: [kind, kind_of(own), gradient_kind],
            flags: params.flags,
            traits: RowsFlags(traits.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum()),
        }
    }
}
