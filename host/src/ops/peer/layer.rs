//! A layer: the retrieval of tokens' experts, and what those make of them.
//!
//! The one computes and waits for itself, the other waits for memory. So where there are more tokens than a GPU finds the experts of at a time, those of the last are
//! found on a branch of the stream while the experts of the others are evaluated: multiprocessors have blocks of both.

use std::ops::Range;

use super::experts::is_by_token;
use super::product_key::Parts;
use super::{ExpertInput, ExpertTable, ProductKeyOp, Routing, RoutingInput, expert_mlp};
use crate::error::Result;
use crate::ops::Activation;
use crate::stream::Operand;
use crate::tensor::Tensor;

/// Bytes of experts that an H100 reads in a microsecond while it finds others.
const BYTES_PER_MICROSECOND: f64 = 2.5e6;

/// Evaluates the experts of `table` that `retrieval` finds for its tokens `[.., D]`, into `y` `[.., O]`.
///
/// # Errors
///
/// As [`ProductKeyOp::run`] and [`ExpertMlpOp::run_into`](super::ExpertMlpOp::run_into).
pub(crate) fn peer<T: RoutingInput + ExpertInput>(
    retrieval: &ProductKeyOp<'_, T>,
    table: &ExpertTable,
    activation: Activation,
    y: &mut Tensor<T>,
) -> Result<()> {
    if let Some(parts) = retrieval.parts()?
        && saves_time(&parts, table)
        && in_parts(retrieval, &parts, table, activation, y)?
    {
        return Ok(());
    }
    let (stream, routing) = (retrieval.stream(), retrieval.run()?);
    expert_mlp(retrieval.x(), &routing, table).activation(activation).on(&stream).run_into(y)
}

/// Whether [`peer`] takes two parts, if nothing is wrong with its operands.
///
/// # Errors
///
/// As [`ProductKeyOp::run`], for the operands.
pub(crate) fn peer_is_in_parts<T: RoutingInput>(
    retrieval: &ProductKeyOp<'_, T>,
    table: &ExpertTable,
) -> Result<bool> {
    Ok(retrieval.parts()?.is_some_and(|parts| saves_time(&parts, table)))
}

/// Whether the experts of the first part take longer than the second part's retrieval beside them, by a kernel that leaves room for that.
fn saves_time<T: RoutingInput>(parts: &Parts<'_, '_, T>, table: &ExpertTable) -> bool {
    let [first, others] = parts.tokens();
    let bytes = first.len() as f64 * parts.experts() as f64 * table.layout().row_bytes() as f64;
    bytes >= parts.time() * BYTES_PER_MICROSECOND && is_by_token(table, [others.end, parts.experts()])
}

/// As [`peer`] in two parts. False, and nothing has been done, if an operand is not as it has to be.
fn in_parts<T: RoutingInput + ExpertInput>(
    retrieval: &ProductKeyOp<'_, T>,
    parts: &Parts<'_, '_, T>,
    table: &ExpertTable,
    activation: Activation,
    y: &Tensor<T>,
) -> Result<bool> {
    let (x, stream) = (retrieval.x(), retrieval.stream());
    let [first, others] = parts.tokens();
    let tokens = others.end;
    let (Some((&o, leading)), Some((_, of_x))) = (y.shape().split_last(), x.shape().split_last()) else {
        return Ok(false);
    };
    let fits = o == table.layout().o()
        && leading == of_x
        && y.is_contiguous()
        && y.device() == x.device()
        && x.device() == table.device();
    let shares = parts.shares_memory(y) || table.shares_memory(y);
    let (Ok(x), true, false) = (x.flatten_leading(), fits, shares) else { return Ok(false) };
    let y = y.flatten_leading()?;

    let (q, routing) = parts.project(&stream)?;
    let part = |range: Range<usize>| -> Result<_> {
        let (ids, gates) = (routing.ids.slice(0, range.clone())?, routing.gates.slice(0, range.clone())?);
        Ok((
            x.slice(0, range.clone())?,
            q.slice(0, range.clone())?,
            Routing { ids, gates },
            y.slice(0, range)?,
        ))
    };
    let (x_1, q_1, mut routing_1, mut y_1) = part(first)?;
    let (x_2, q_2, mut routing_2, mut y_2) = part(others)?;
    let mut operands = parts.operands();
    operands.extend(table.operands());
    operands.extend([&q as &dyn Operand, &routing.ids, &routing.gates, &y]);
    stream.beside(&operands, |branch| {
        parts.find(false, &stream, &q_1, &mut routing_1)?;
        parts.find(true, branch, &q_2, &mut routing_2)?;
        let experts = |x, routing, stream| {
            expert_mlp(x, routing, table).activation(activation).part_of(tokens).beside_retrieval().on(stream)
        };
        experts(&x_1, &routing_1, &stream).run_into(&mut y_1)?;
        experts(&x_2, &routing_2, branch).run_into(&mut y_2)
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use warpsmith_emulator::Completion;

    use super::{in_parts, peer, saves_time};
    use crate::device::EmulatorOptions;
    use crate::ops::peer::{ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors};
    use crate::ops::{self, Activation};
    use crate::{Device, Tensor};

    fn emulator(completion: Completion) -> Device {
        Device::emulator_with(EmulatorOptions {
            compute_capability: (9, 0),
            completion,
            ..EmulatorOptions::default()
        })
    }

    /// Numbers below 1 that depend on a seed.
    fn numbers(count: usize, mut seed: u32) -> Vec<f32> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn tensor(device: &Device, shape: &[usize], seed: u32) -> Tensor<bf16> {
        let count = shape.iter().product();
        let values: Vec<bf16> = numbers(count, seed).into_iter().map(bf16::from_f32).collect();
        Tensor::from_slice(device, &values, shape).expect("a small tensor")
    }

    /// A table of `count` experts of `d` numbers each way.
    fn table(device: &Device, count: usize, d: usize) -> ExpertTable {
        let layout = ExpertLayout::new(ExpertFormat::Bf16, d, 1, d, false).expect("sizes are fine");
        let (u, v) = (numbers(count * d, 7), numbers(count * d, 8));
        let mut rows = vec![0; count * layout.row_bytes()];
        layout.pack_rows(ExpertVectors { u: &u, w: &[], v: &v }, &mut rows).expect("as many as there are");
        let mut table = ExpertTable::zeros(device, layout, count).expect("there is memory");
        table.write_rows(0, &rows).expect("as many as there are");
        table
    }

    #[test]
    fn a_layer_in_parts_gives_the_bits_of_the_operations_one_after_the_other() {
        const N: usize = 40;
        // Clusters of the second part have rows twice, the last one not all of them.
        for (completion, heads, per_head, tokens, first) in [
            (Completion::Latest, 8, false, 1701, 1056),
            (Completion::Random, 16, true, 891, 512),
            (Completion::Eager, 16, true, 700, 512),
        ] {
            let device = emulator(completion);
            let table = table(&device, N * N, 8);
            let x = tensor(&device, &[tokens, 8], 1);
            let w_q = tensor(&device, &[heads * 16, 8], 2);
            let groups = if per_head { heads } else { 1 };
            let keys = [3, 4].map(|seed| {
                let keys = tensor(&device, &[groups, N, 8], seed);
                if per_head { keys } else { keys.reshape([N, 8]).expect("as many") }
            });
            let retrieval = ops::product_key_topk(&x, &w_q, &keys[0], &keys[1], heads, 3);
            let parts = retrieval.parts().expect("operands fit").expect("there is more than one wave");
            assert_eq!(parts.tokens(), [0..first, first..tokens]);
            assert!(!saves_time(&parts, &table), "experts of so few numbers take no time");
            let y = Tensor::zeros(&device, [tokens, 8]).expect("there is memory");
            assert!(in_parts(&retrieval, &parts, &table, Activation::Relu, &y).expect("operands fit"));
            let mut expected = Tensor::zeros(&device, [tokens, 8]).expect("there is memory");
            peer(&retrieval, &table, Activation::Relu, &mut expected).expect("operands fit");
            assert_eq!(y.to_vec().expect("a result"), expected.to_vec().expect("a result"));
            assert!(expected.to_vec().expect("a result").iter().any(|&value| value != bf16::ZERO));
        }
    }
}
