//! A layer: the retrieval of tokens' experts, and what those make of them.
//!
//! The one computes and waits for itself, the other waits for memory. There may be more tokens than a GPU finds the experts of
//! at a time. Then those of the last are found on a branch of the stream while the experts of the others are evaluated. So
//! multiprocessors have blocks of both.

use std::ops::Range;

use super::experts::is_by_token;
use super::product_key::Parts;
use super::{ExpertInput, ExpertLayout, ExpertTable, ProductKeyOp, Routing, RoutingInput, expert_mlp};
use crate::device::Properties;
use crate::error::Result;
use crate::ops::Activation;
use crate::stream::Operand;
use crate::tensor::Tensor;

/// Bytes of experts that an H100 reads in a microsecond while it finds others. With rows of 4 bits in the layer that PEER is
/// measured by, two parts take 0.90 times as long as one for 1336 and 1456 tokens, whose others are found in one round. For
/// 1584, 1600 and 2048, in two rounds, they would take 1.08, 1.04 and 1.03 times as long.
const BYTES_PER_MICROSECOND: f64 = 2.5e6;

/// Evaluates the experts of `table` that `retrieval` finds for its tokens `[.., D]`, into `y` `[.., O]`.
///
/// # Errors
///
/// As [`ProductKeyOp::run`] and [`ExpertMlpOp::run_into`](super::ExpertMlpOp::run_into).
pub fn peer<T: RoutingInput + ExpertInput>(
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
pub fn peer_is_in_parts<T: RoutingInput>(
    retrieval: &ProductKeyOp<'_, T>,
    table: &ExpertTable,
) -> Result<bool> {
    Ok(retrieval.parts()?.is_some_and(|parts| saves_time(&parts, table)))
}

/// Whether it saves time to take these parts.
fn saves_time<T: RoutingInput>(parts: &Parts<'_, '_, T>, table: &ExpertTable) -> bool {
    let tokens = parts.tokens().map(|part| part.end);
    let properties = table.device().properties();
    is_worth_it(tokens, [parts.experts(), table.count()], table.layout(), parts.time(), properties)
}

/// Whether the experts of the `first` of `tokens` tokens, so many of each, take longer than the retrieval of `time` microseconds beside them, and by
/// the kernel that leaves room for that.
fn is_worth_it(
    [first, tokens]: [usize; 2],
    [experts, rows]: [usize; 2],
    layout: &ExpertLayout,
    time: f64,
    properties: &Properties,
) -> bool {
    let bytes = first as f64 * experts as f64 * layout.row_bytes() as f64;
    bytes >= time * BYTES_PER_MICROSECOND && is_by_token(layout, [tokens, experts, rows], properties)
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
    let fits = y.expect_writable("Peer", "y").is_ok()
        && o == table.layout().o()
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
    // What follows allocates nothing, on the branch least of all: these views are without gaps as they are, and so are sub-keys and what normalises queries
    // wherever there are parts; tokens that have a block each need no workspace.
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
    use half::{bf16, f16};
    use warpsmith_emulator::Completion;

    use super::{in_parts, is_worth_it, peer, saves_time};
    use crate::device::EmulatorOptions;
    use crate::ops::peer::retrieval::{choose, divided};
    use crate::ops::peer::{
        ExpertFormat, ExpertInput, ExpertLayout, ExpertTable, ExpertVectors, QueryNorm, RoutingInput,
    };
    use crate::ops::{self, Activation};
    use crate::weights::FloatElement;
    use crate::{Device, Tensor};

    /// A GPU as large as an H100.
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

    fn tensor<T: FloatElement>(device: &Device, shape: &[usize], seed: u32) -> Tensor<T> {
        let values = numbers(shape.iter().product(), seed);
        let values: Vec<T> = values.into_iter().map(|number| T::round(number.into())).collect();
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

    /// Compares the two parts of `leading` tokens, of which `first` are found first, with all of them at once.
    fn check<T: RoutingInput + ExpertInput + FloatElement>(
        completion: Completion,
        leading: &[usize],
        (heads, per_head): (usize, bool),
        first: usize,
    ) {
        const N: usize = 40;
        let device = emulator(completion);
        let table = table(&device, N * N, 8);
        let (shape, tokens) = ([leading, &[8]].concat(), leading.iter().product());
        let (x, w_q) = (tensor::<T>(&device, &shape, 1), tensor::<T>(&device, &[heads * 16, 8], 2));
        let keys = [3, 4].map(|seed| {
            let shape = if per_head { &[heads, N, 8][..] } else { &[N, 8] };
            tensor::<T>(&device, shape, seed)
        });
        let bias = tensor::<T>(&device, &[heads * 16], 5);
        let norm = [6, 7].map(|seed| tensor::<f32>(&device, &[heads, 16], seed));
        let mut retrieval = ops::product_key_topk(&x, &w_q, &keys[0], &keys[1], heads, 3);
        if per_head {
            let [weight, shift] = &norm;
            retrieval = retrieval.query_norm(QueryNorm::layer(1e-5).weight(weight).bias(shift));
        } else {
            retrieval = retrieval.bias(&bias);
        }
        let parts = retrieval.parts().expect("operands fit").expect("there is more than one wave");
        assert_eq!(parts.tokens(), [0..first, first..tokens]);
        assert!(!saves_time(&parts, &table), "experts of so few numbers take no time");
        let y = Tensor::<T>::zeros(&device, &shape).expect("there is memory");
        assert!(in_parts(&retrieval, &parts, &table, Activation::Relu, &y).expect("operands fit"));
        let mut expected = Tensor::<T>::zeros(&device, &shape).expect("there is memory");
        peer(&retrieval, &table, Activation::Relu, &mut expected).expect("operands fit");
        let [y, expected] = [y, expected].map(|tensor| tensor.to_vec().expect("a result"));
        let bits = |all: &[T]| bytemuck::cast_slice::<T, u16>(all).to_vec();
        assert_eq!(bits(&y), bits(&expected));
        assert!(bits(&y).iter().any(|&bits| bits != 0));
    }

    #[test]
    fn a_layer_in_parts_gives_the_bits_of_the_operations_one_after_the_other() {
        // Clusters of the second part have rows twice, the last one not all of them.
        check::<bf16>(Completion::Latest, &[3, 567], (8, false), 1056);
        check::<f16>(Completion::Random, &[891], (16, true), 512);
        // Once. Rows of a token find room, but not all five of them: it is one of the others.
        check::<f16>(Completion::Eager, &[851, 2], (5, false), 1689);
        check::<bf16>(Completion::Eager, &[2, 5, 70], (16, true), 512);
    }

    /// Whether so many tokens of eight heads, which may have sub-keys of their own, are worked in parts, with 16 experts each of so many rows of 1024 numbers each way.
    fn is_in_parts(format: ExpertFormat, [tokens, rows]: [usize; 2], per_head: bool) -> bool {
        let device = emulator(Completion::Eager);
        let layout = ExpertLayout::new(format, 1024, 1, 1024, false).expect("sizes are fine");
        let (of_token, heads) = if per_head { (1, 8) } else { (8, 1) };
        let all = choose(&bf16::KERNELS, [tokens * of_token, heads, 1024, 16], (9, 0), [132, 227 << 10]);
        let division = divided(&bf16::KERNELS, [tokens, of_token, heads, 1024], &all, 132);
        division.is_some_and(|division| {
            let tokens = [division.first, tokens];
            is_worth_it(tokens, [8 * 16, rows], &layout, division.time, device.properties())
        })
    }

    #[test]
    fn parts_are_taken_where_experts_take_longer_than_the_retrieval_beside_them() {
        // The first tokens, and the last ones of which experts have 8 or 16 bits, and 4.
        for (per_head, first, [last, last_of_4_bits]) in
            [(true, 1313, [2048, 1536]), (false, 1321, [2112, 1584])]
        {
            for (format, last) in [
                (ExpertFormat::F16, last),
                (ExpertFormat::Bf16, last),
                (ExpertFormat::Int8, last),
                (ExpertFormat::F8E4M3, last),
                (ExpertFormat::Int4, last_of_4_bits),
            ] {
                let is_in_parts = |tokens| is_in_parts(format, [tokens, 1 << 20], per_head);
                assert!(!is_in_parts(first - 1) && is_in_parts(first), "{format}, {first} tokens");
                assert!(is_in_parts(last) && !is_in_parts(last + 1), "{format}, {last} tokens");
            }
        }
        assert!(!is_in_parts(ExpertFormat::Bf16, [2112, 1 << 18], false), "tokens are sorted");
    }
}
