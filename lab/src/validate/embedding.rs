//! Validation of look-ups in tables, and of their gradients: rows are copied as they are, and added up in the order of their tokens.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::embedding::{EmbeddingElement, EmbeddingId};
use warpsmith::ops::{self, Implementation, SparseRows};
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::Outcome;
use super::elementwise::{drawn, judged};
use super::load::{Output, Prepared, Step};
use super::placed::Placed;
use super::tally::Tally;
use crate::cases::{EmbeddingCase, split_mix};

/// The operation's name in errors.
const OPERATION: &str = "validate::embedding";

/// A type of tables.
trait Table: EmbeddingElement + FloatElement {}
impl<T: EmbeddingElement + FloatElement> Table for T {}

/// A type of ids.
trait Id: EmbeddingId {
    fn of(id: i64) -> Self;
}

impl Id for u32 {
    fn of(id: i64) -> Self {
        id as Self
    }
}

impl Id for i64 {
    fn of(id: i64) -> Self {
        id
    }
}

/// Runs `$f::<T, I>` with the types of a case.
macro_rules! of_types {
    ($case:expr, $f:ident($($argument:expr),*)) => {
        match ($case.dtype, $case.is_wide) {
            (DType::F16, false) => $f::<f16, u32>($($argument),*),
            (DType::F16, true) => $f::<f16, i64>($($argument),*),
            (DType::Bf16, false) => $f::<bf16, u32>($($argument),*),
            (DType::Bf16, true) => $f::<bf16, i64>($($argument),*),
            (DType::F32, false) => $f::<f32, u32>($($argument),*),
            (DType::F32, true) => $f::<f32, i64>($($argument),*),
            (actual, _) => {
                let expected = "f16, bf16 or f32".into();
                Err(Error::Type { operation: OPERATION, operand: "table", expected, actual })
            }
        }
    };
}

/// Runs one case on `device`, the look-up and its gradient, alone and added to that of the table, and compares every result with the exact one.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32; otherwise whatever the operations return.
pub fn embedding(device: &Device, case: &EmbeddingCase) -> Result<Outcome> {
    of_types!(case, check(device, case))
}

/// The bits of every result: to compare one device, or mode, with another.
///
/// # Errors
///
/// As [`embedding`].
pub fn embedding_bits(device: &Device, case: &EmbeddingCase) -> Result<Vec<u8>> {
    of_types!(case, bits(device, case))
}

/// Prepares a case to be run again and again into one of `slots` outputs.
pub(super) fn prepare(device: &Device, case: &EmbeddingCase, slots: usize) -> Result<Prepared> {
    of_types!(case, prepared(device, case, slots))
}

/// What a case reads.
struct Operands<T: Table> {
    ids: Vec<i64>,
    table: Array2<T>,
    dy: Array2<T>,
    gradient: Array2<f32>,
}

impl<T: Table> Operands<T> {
    fn new(case: &EmbeddingCase) -> Result<Self> {
        let EmbeddingCase { vocabulary, columns, tokens, seed, .. } = *case;
        let id = |token: usize| {
            let bits = split_mix(seed, token as u64);
            match bits % 16 {
                0 => -1,
                1 => vocabulary as i64 + (bits >> 40) as i64,
                // Spread over the table.
                _ => {
                    let one = (bits >> 8) as usize % case.different.max(1);
                    (one.wrapping_mul(7919) % vocabulary.max(1)) as i64
                }
            }
        };
        Ok(Self {
            ids: (0..tokens).map(id).collect(),
            table: drawn(seed, 0, (vocabulary, columns), 6.0)?,
            dy: drawn(seed, 1, (tokens, columns), 6.0)?,
            gradient: drawn(seed, 2, (vocabulary, columns), 6.0)?,
        })
    }

    fn given<I: Id>(&self, device: &Device) -> Result<Tensor<I>> {
        let ids: Vec<I> = self.ids.iter().map(|&id| I::of(id)).collect();
        Tensor::from_slice(device, &ids, [ids.len()])
    }
}

/// Every result of a case.
struct Results<T> {
    y: Array2<T>,
    ids: Vec<u32>,
    rows: Vec<f32>,
    dense: Array2<f32>,
    implementation: Implementation,
    strays: usize,
}

fn run<T: Table, I: Id>(device: &Device, case: &EmbeddingCase, operands: &Operands<T>) -> Result<Results<T>> {
    fn placed<U: Table>(device: &Device, case: &EmbeddingCase, held: &Array2<U>) -> Result<Placed<U>> {
        Placed::new(device, Some(held), held.dim(), U::round(77.0), case.placement)
    }
    let EmbeddingCase { vocabulary, tokens, .. } = *case;
    let given = operands.given::<I>(device)?;
    let of_rows = |columns| vec![vocabulary, columns];
    let of_tokens = |columns| vec![tokens, columns];
    let table = placed(device, case, &operands.table)?.tensor(&of_rows)?;
    let dy = placed(device, case, &operands.dy)?.tensor(&of_tokens)?;
    let of_y = Placed::new(device, None, operands.dy.dim(), T::round(77.0), case.placement)?;
    let of_gradient = placed(device, case, &operands.gradient)?;
    let look_up = ops::embedding(&table, &given);
    look_up.run_into(&mut of_y.tensor(&of_tokens)?)?;
    let backward = ops::embedding_backward(&dy, &given, vocabulary);
    backward.accumulate(&mut of_gradient.tensor(&of_rows)?)?;
    let (ids, rows) = backward.run()?.read()?;
    let implementation = match look_up.implementation()? {
        one @ (Implementation::Cpu | Implementation::Empty) => one,
        one => one.then(backward.implementation()?),
    };
    let (y, dense) = (of_y.read()?, of_gradient.read()?);
    let strays = y.strays() + dense.strays();
    let (y, dense) = (y.inside().to_owned(), dense.inside().to_owned());
    Ok(Results { y, ids, rows, dense, implementation, strays })
}

fn bits<T: Table, I: Id>(device: &Device, case: &EmbeddingCase) -> Result<Vec<u8>> {
    let Results { y, ids, rows, dense, .. } = run::<T, I>(device, case, &Operands::new(case)?)?;
    let mut all = bytemuck::cast_slice(&y.into_raw_vec_and_offset().0).to_vec();
    all.extend_from_slice(bytemuck::cast_slice(&ids));
    all.extend_from_slice(bytemuck::cast_slice(&rows));
    all.extend_from_slice(bytemuck::cast_slice(&dense.into_raw_vec_and_offset().0));
    Ok(all)
}

fn check<T: Table, I: Id>(device: &Device, case: &EmbeddingCase) -> Result<Outcome> {
    let operands = Operands::<T>::new(case)?;
    let Results { y, ids, rows, dense, implementation, strays } = run::<T, I>(device, case, &operands)?;
    let mut tally = Tally::new(implementation, true);
    tally.outcome.stray_writes = strays;
    let (vocabulary, columns) = (case.vocabulary, case.columns);
    let (mut sums, mut onto) = (Array2::<f32>::zeros((vocabulary, columns)), operands.gradient.clone());
    let mut is_named = vec![false; vocabulary];
    for (token, &id) in operands.ids.iter().enumerate() {
        let row = usize::try_from(id).ok().filter(|&row| row < vocabulary);
        if let Some(row) = row {
            is_named[row] = true;
        }
        for column in 0..columns {
            let at = [token, column];
            let got = y[at].to_f32();
            let Some(row) = row else {
                tally.outcome.failures += usize::from(!got.is_nan());
                continue;
            };
            let (got, expected) = (f64::from(got), f64::from(operands.table[[row, column]].to_f32()));
            tally.add(at, got, [expected; 2], judged((expected, 0.0)));
            let dy = operands.dy[at].to_f32();
            sums[[row, column]] += dy;
            onto[[row, column]] += dy;
        }
    }
    let named: Vec<u32> = (0..vocabulary).filter(|&row| is_named[row]).map(|row| row as u32).collect();
    tally.outcome.failures += usize::from(ids != named);
    if ids == named {
        for (at, &got) in rows.iter().enumerate() {
            let place = [named[at / columns] as usize, at % columns];
            let expected = f64::from(sums[place]);
            tally.add(place, f64::from(got), [expected; 2], judged((expected, 0.0)));
        }
    }
    for ((row, column), &got) in dense.indexed_iter() {
        let expected = f64::from(onto[[row, column]]);
        tally.add([row, column], f64::from(got), [expected; 2], judged((expected, 0.0)));
    }
    tally.outcome.compared = y.len() + rows.len() + dense.len();
    Ok(tally.finish())
}

fn prepared<T: Table, I: Id>(device: &Device, case: &EmbeddingCase, slots: usize) -> Result<Prepared> {
    let EmbeddingCase { vocabulary, columns, tokens, .. } = *case;
    let operands = Operands::<T>::new(case)?;
    let given = operands.given::<I>(device)?;
    let [table, dy] =
        [Tensor::from_array(device, &operands.table)?, Tensor::from_array(device, &operands.dy)?];
    let room = tokens.min(vocabulary);
    let of_slots = (0..slots)
        .map(|_| {
            let gradient = SparseRows {
                ids: Tensor::zeros(device, [room])?,
                rows: Tensor::<f32>::zeros(device, [room, columns])?,
                count: Tensor::zeros(device, [1])?,
            };
            Ok((Tensor::<T>::zeros(device, [tokens, columns])?, gradient))
        })
        .collect::<Result<Vec<_>>>()?;
    let memory = |(y, gradient): &(Tensor<T>, SparseRows<f32>)| {
        Ok(vec![
            Output::new("y", y)?,
            Output::new("ids", &gradient.ids)?,
            Output::new("rows", &gradient.rows)?,
            Output::new("count", &gradient.count)?,
        ])
    };
    Prepared::of_slots(of_slots, memory, move |(y, gradient), step| {
        let look_up = ops::embedding(&table, &given);
        let backward = ops::embedding_backward(&dy, &given, vocabulary);
        if step == Step::Ask {
            return Ok(look_up.implementation()?.then(backward.implementation()?));
        }
        look_up.run_into(y)?;
        backward.run_into(gradient)?;
        Ok(Implementation::Empty)
    })
}
