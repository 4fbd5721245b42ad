//! Rotary position embedding.

use candle_core::{DType, Device, Tensor};
use warpsmith::ops;
use warpsmith::ops::Pairing;
use warpsmith::ops::rotary::RotaryElement;

use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Shared, with_element};
use crate::place::{Place, expect_same};

/// The operation's name in errors.
const OPERATION: &str = "rotary";

/// The angles of positions, on a device. Clones share them.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    device: Device,
    table: ops::RotaryTable,
}

impl RotaryTable {
    /// The angles `position · base^(−2i / rotary_dim)` of the pairs i of `rotary_dim` elements, an even number, at
    /// positions below `positions`.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on a device that is neither the CPU nor a CUDA device; [`Error::Warpsmith`] if
    /// an argument is out of its range, or the device has too
    /// little memory.
    ///
    /// [`Error::UnsupportedDevice`]: crate::Error::UnsupportedDevice
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn new(device: &Device, base: f64, rotary_dim: usize, positions: usize) -> Result<Self> {
        let place = Place::of(OPERATION, "table", device)?;
        // On the device's own stream, not on candle's, which may be this thread's: other threads use the table, too.
        let table = ops::RotaryTable::new(place.device(), base, rotary_dim, positions)?;
        Ok(Self { device: device.clone(), table })
    }
}

/// `x` `[.., S, H, D]`, tokens S and heads H of D elements, with the first elements of each head turned by the
/// angles of `table`, the others as they are.
///
/// A token's position is its place in S, unless [`RotaryOp::offset`] or [`RotaryOp::positions`] says otherwise. x
/// has a gradient.
///
/// Tables of cosines and sines, as [`candle_nn::rotary_emb`] takes them, are not needed.
pub fn rotary<'a>(x: &'a Tensor, table: &'a RotaryTable) -> RotaryOp<'a> {
    RotaryOp { x, table, pairing: Pairing::default(), offset: 0, positions: None }
}

/// A rotation that has yet to be made; see [`rotary`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct RotaryOp<'a> {
    x: &'a Tensor,
    table: &'a RotaryTable,
    pairing: Pairing,
    offset: usize,
    positions: Option<&'a Tensor>,
}

impl<'a> RotaryOp<'a> {
    /// Which elements are a pair; [`Pairing::Halves`] unless this says otherwise, which is candle's `rope`.
    pub fn pairing(self, pairing: Pairing) -> Self {
        Self { pairing, ..self }
    }

    /// The position of the first token of each sequence; 0 unless this says otherwise.
    pub fn offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    /// The position of each token, `[.., S]` of type u32, in place of its place and the offset.
    pub fn positions(self, positions: impl Into<Option<&'a Tensor>>) -> Self {
        Self { positions: positions.into(), ..self }
    }

    /// Turns the heads.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] if x is not f32, f16 or bf16, or positions not u32; [`Error::DeviceMismatch`] if an operand
    /// or the table is on another device;
    /// [`Error::Warpsmith`] if a shape or the offset does not fit.
    ///
    /// [`Error::Type`]: crate::Error::Type
    /// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
    /// [`Error::Warpsmith`]: crate::Error::Warpsmith
    pub fn run(&self) -> Result<Tensor> {
        let mut operands = vec![("x", self.x)];
        let call = self.call(&operands)?;
        operands.clear();
        with_element!(call, T => {
            let (table, pairing, offset) = (self.table.clone(), self.pairing, self.offset);
            let positions = self.positions.map(Tensor::detach);
            let turn = Turn { table, pairing, offset, positions };
            let y = turn.run::<T>(&call, false)?;
            attach(OPERATION, y, &[self.x], move |_, dy| turn.backward::<T>(dy))
        })
    }

    fn call(&self, operands: &[(&'static str, &Tensor)]) -> Result<Call> {
        let call = Call::new(OPERATION, operands)?;
        expect_same(OPERATION, ("table", &self.table.device), ("x", self.x.device()))?;
        with_positions(call, self.positions)
    }
}

/// A call with positions, if there are any, and contiguous heads.
fn with_positions(call: Call, positions: Option<&Tensor>) -> Result<Call> {
    let call = call.with_contiguous_rows()?;
    match positions {
        Some(positions) => call.with(("positions", positions), &[DType::U32])?.with_contiguous_rows(),
        None => Ok(call),
    }
}

/// A rotation apart from what it turns.
struct Turn {
    table: RotaryTable,
    pairing: Pairing,
    offset: usize,
    positions: Option<Tensor>,
}

impl Turn {
    fn run<T: Shared + RotaryElement>(
        &self,
        call: &Call,
        is_inverse: bool,
    ) -> Result<crate::memory::Computed> {
        let mut y = call.fresh::<T>(call.operand(0).shape())?;
        {
            let locked = call.lock();
            let x = locked.view::<T>(0)?;
            let positions = self.positions.as_ref().map(|_| locked.view::<u32>(1)).transpose()?;
            let mut turn = ops::rotary(&x, &self.table.table).pairing(self.pairing).offset(self.offset);
            if let Some(positions) = &positions {
                turn = turn.positions(positions);
            }
            let turn = if is_inverse { turn.backward() } else { turn };
            turn.on(call.stream()).run_into(&mut *y.open()?)?;
        }
        Ok(y.finish())
    }

    fn backward<T: Shared + RotaryElement>(&self, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let call = with_positions(Call::new("rotary_backward", &[("dy", dy)])?, self.positions.as_ref())?;
        Ok(vec![Some(self.run::<T>(&call, true)?.detached())])
    }
}
