//! Rows of a table by ids.

use candle_core::{DType, Tensor};
use warpsmith::ops;
use warpsmith::ops::embedding::{EmbeddingElement, EmbeddingId};

use crate::error::Result;
use crate::graph::attach;
use crate::memory::{Call, Computed, Shared, with_element};

/// The operation's name in errors.
const OPERATION: &str = "embedding";

/// The rows of `table` `[V, D]` that `ids` `[..]`, of type u32 or i64, name: `[.., D]`.
///
/// An id that is negative, or V or more, gives a row of NaN. The table has a gradient, the same bits every time:
/// rows of equal ids are added up in f32, in the order of the ids, and
/// rounded once.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::embedding;
///
/// let table = Tensor::new(&[[1.0f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let ids = Tensor::new(&[1u32, 0, 1], &Device::Cpu)?;
/// assert_eq!(embedding(&table, &ids)?.to_vec2::<f32>()?, [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Type`] if the table is not f32, f16 or bf16, or the ids neither u32 nor i64; [`Error::DeviceMismatch`]
/// if they are on different devices;
/// [`Error::Warpsmith`] if the table is no matrix.
///
/// [`Error::Type`]: crate::Error::Type
/// [`Error::DeviceMismatch`]: crate::Error::DeviceMismatch
/// [`Error::Warpsmith`]: crate::Error::Warpsmith
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let call = Call::new(OPERATION, &[("table", table)])?.with(("ids", ids), &[DType::U32, DType::I64])?;
    with_element!(call, T => {
        let y = match ids.dtype() {
            DType::I64 => forward::<T, i64>(&call)?,
            _ => forward::<T, u32>(&call)?,
        };
        attach(OPERATION, y, &[table], move |_, dy| match call.operand(1).dtype() {
            DType::I64 => backward::<T, i64>(&call, dy),
            _ => backward::<T, u32>(&call, dy),
        })
    })
}

fn forward<T: Shared + EmbeddingElement, I: Shared + EmbeddingId>(call: &Call) -> Result<Computed> {
    let (table, ids) = (call.operand(0), call.operand(1));
    let columns = table.dims().last().copied().unwrap_or_default();
    let mut y = call.fresh::<T>([ids.dims(), &[columns]].concat())?;
    {
        let locked = call.lock();
        let (table, ids) = (locked.view::<T>(0)?, locked.view::<I>(1)?);
        ops::embedding(&table, &ids).on(call.stream()).run_into(&mut *y.open()?)?;
    }
    Ok(y.finish())
}

fn backward<T: Shared + EmbeddingElement, I: Shared + EmbeddingId>(
    forward: &Call,
    dy: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let (table, ids) = (forward.operand(0), forward.operand(1));
    let call =
        Call::new("embedding_backward", &[("dy", dy)])?.with(("ids", ids), &[DType::U32, DType::I64])?;
    let mut gradient = call.zeros::<f32>(table.shape())?;
    {
        let locked = call.lock();
        let (dy, ids) = (locked.view::<T>(0)?, locked.view::<I>(1)?);
        let mut gradient = gradient.open()?;
        ops::embedding_backward(&dy, &ids, table.dims()[0]).on(call.stream()).accumulate(&mut gradient)?;
    }
    Ok(vec![Some(gradient.finish().detached().to_dtype(table.dtype())?)])
}
