//! Each collective gives what it says, on one to eight ranks, for sizes that do not divide, in every type.

use std::net::{Ipv6Addr, TcpListener};

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith::{Device, Element, Tensor};
use warpsmith_parallel::launch::{self, Meeting};
use warpsmith_parallel::{Reduction, Result};

use crate::support::{LIMIT, Random, met, on_both, vector};

const SIZES: [usize; 5] = [0, 1, 7, 64, 131];

#[test]
fn all_reduce_gives_every_rank_the_sum_in_the_order_of_the_ranks() {
    for size in 1..=8 {
        for count in SIZES {
            let of_rank = |rank: usize| Random(rank as u64).numbers(count);
            let expected: Vec<u32> = (0..count)
                .map(|at| {
                    (0..size).map(|rank| of_rank(rank)[at]).reduce(|a, b| a + b).unwrap_or(0.0).to_bits()
                })
                .collect();
            let results = launch::threads_within(LIMIT, size, |communicator| {
                let mut tensor = vector(&of_rank(communicator.rank()));
                communicator.all_reduce(&mut tensor, Reduction::Sum)?;
                Ok(tensor.to_vec()?)
            });
            for result in results.expect("no rank fails") {
                let bits: Vec<u32> = result.into_iter().map(f32::to_bits).collect();
                assert_eq!(bits, expected, "{count} on {size}");
            }
        }
    }
}

/// All reductions of small whole numbers, which are exact.
fn reductions_of<T: Element>(number: impl Fn(f32) -> T + Sync, has_mean: bool) {
    let size = 4;
    for results in on_both(size, |communicator| {
        let own = [communicator.rank() as f32 + 1.0, 4.0 - communicator.rank() as f32];
        let of = |reduction| -> Result<Vec<T>> {
            let mut tensor = vector(&own.map(&number));
            communicator.all_reduce(&mut tensor, reduction)?;
            Ok(tensor.to_vec()?)
        };
        let mean = match of(Reduction::Mean) {
            Ok(mean) if has_mean => mean,
            Err(error) if !has_mean => {
                assert!(error.to_string().contains("sum, max or min"), "{error}");
                vec![]
            }
            _ => panic!("a mean of {:?}", T::DTYPE),
        };
        Ok([of(Reduction::Sum)?, of(Reduction::Max)?, of(Reduction::Min)?, mean])
    }) {
        for [sum, max, min, mean] in results {
            assert_eq!(sum, [number(10.0), number(10.0)]);
            assert_eq!(max, [number(4.0), number(4.0)]);
            assert_eq!(min, [number(1.0), number(1.0)]);
            assert_eq!(mean, if has_mean { vec![number(2.5), number(2.5)] } else { vec![] });
        }
    }
}

#[test]
fn every_type_is_reduced() {
    reductions_of(F8E4M3::from_f32, true);
    reductions_of(F8E5M2::from_f32, true);
    reductions_of(f16::from_f32, true);
    reductions_of(bf16::from_f32, true);
    reductions_of(|number| number, true);
    reductions_of(f64::from, true);
    reductions_of(|number| number as u8, false);
    reductions_of(|number| number as i32, false);
    reductions_of(|number| number as u32, false);
    reductions_of(|number| number as i64, false);
}

#[test]
fn parts_are_scattered_gathered_and_exchanged() {
    for size in [1, 2, 3, 5] {
        for count in [0, 1, 7] {
            for results in on_both(size, |communicator| {
                let rank = communicator.rank() as i32;
                let all: Vec<i32> = (0..(size * count) as i32).map(|at| at + 1000 * rank).collect();
                let all = vector(&all);
                let mut part = vector(&vec![-1; count]);
                communicator.reduce_scatter(&all, &mut part, Reduction::Sum)?;
                let mut gathered = vector(&vec![-1; size * count]);
                communicator.all_gather(&part, &mut gathered)?;
                let mut exchanged = vector(&vec![-1; size * count]);
                communicator.all_to_all(&all, &mut exchanged)?;
                Ok([gathered.to_vec()?, exchanged.to_vec()?])
            }) {
                let ranks: i32 = (0..size as i32).sum();
                let sums: Vec<i32> =
                    (0..(size * count) as i32).map(|at| at * size as i32 + 1000 * ranks).collect();
                for (rank, [gathered, exchanged]) in results.into_iter().enumerate() {
                    assert_eq!(gathered, sums);
                    let from =
                        |other: usize| (0..count).map(move |at| (rank * count + at + 1000 * other) as i32);
                    assert_eq!(exchanged, (0..size).flat_map(from).collect::<Vec<_>>());
                }
            }
        }
    }
}

#[test]
fn parts_of_any_lengths_are_exchanged() {
    // Rank i sends i + 2 j elements to rank j.
    let size = 3;
    let count = |from: usize, to: usize| from + 2 * to;
    for results in on_both(size, |communicator| {
        let rank = communicator.rank();
        let sends: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
        let receives: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
        let input: Vec<u32> =
            (0..size).flat_map(|to| vec![(10 * rank + to) as u32; count(rank, to)]).collect();
        let mut output = vector(&vec![99u32; receives.iter().sum()]);
        communicator.all_to_all_v(&vector(&input), &sends, &mut output, &receives)?;
        Ok(output.to_vec()?)
    }) {
        for (rank, output) in results.into_iter().enumerate() {
            let expected = (0..size).flat_map(|from| vec![(10 * from + rank) as u32; count(from, rank)]);
            assert_eq!(output, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn broadcasts_sends_and_barriers_work_between_any_ranks() {
    let size = 4;
    for results in on_both(size, |communicator| {
        let rank = communicator.rank();
        let mut all = Vec::new();
        for root in 0..size {
            let mut tensor = vector(&[rank as f64; 3]);
            communicator.broadcast(&mut tensor, root)?;
            assert_eq!(tensor.to_vec()?, [root as f64; 3]);
        }
        // Around the ring, twice in a row, so that order shows.
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        for round in 0..2u8 {
            communicator.send(&vector(&[rank as u8, round]), next)?;
        }
        for _ in 0..2 {
            let mut tensor = vector(&[0u8; 2]);
            communicator.recv(&mut tensor, last)?;
            all.extend(tensor.to_vec()?);
        }
        let mut tensor = vector(&[0u8; 1]);
        communicator.send_recv((&vector(&[rank as u8]), last), (&mut tensor, next))?;
        all.extend(tensor.to_vec()?);
        communicator.barrier(&Device::cpu())?;
        communicator.synchronize(&Device::cpu())?;
        Ok(all)
    }) {
        for (rank, all) in results.into_iter().enumerate() {
            let (next, last) = (((rank + 1) % size) as u8, ((rank + size - 1) % size) as u8);
            assert_eq!(all, [last, 0, last, 1, next]);
        }
    }
}

#[test]
fn emulated_devices_reduce_as_the_cpu_does() -> Result<()> {
    let of = |device: fn() -> Device| {
        launch::threads_within(LIMIT, 2, move |communicator| {
            let numbers = Random(communicator.rank() as u64).numbers(5);
            let mut tensor = Tensor::from_slice(&device(), &numbers, [5])?;
            communicator.all_reduce(&mut tensor, Reduction::Mean)?;
            Ok(tensor.to_vec()?)
        })
    };
    assert_eq!(of(Device::emulator)?, of(Device::cpu)?);
    Ok(())
}

#[test]
fn many_calls_give_the_same_bits_whatever_the_timing() -> Result<()> {
    let run = |pause: bool| {
        launch::threads_within(LIMIT, 5, move |communicator| {
            let mut random = Random(communicator.rank() as u64);
            let mut bits = Vec::new();
            for _ in 0..20 {
                if pause && random.next().is_multiple_of(3) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let mut tensor = vector(&Random(bits.len() as u64 + communicator.rank() as u64).numbers(17));
                communicator.all_reduce(&mut tensor, Reduction::Sum)?;
                bits.extend(tensor.to_vec()?.into_iter().map(f32::to_bits));
            }
            Ok(bits)
        })
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}

#[test]
fn groups_of_ranks_work_beside_each_other() {
    // Two by three ranks.
    for results in on_both(6, |communicator| {
        let rank = communicator.rank();
        let row = communicator.split(rank as u64 / 3)?;
        let column = communicator.split(rank as u64 % 3)?;
        let pair = row.split(u64::from(row.rank() == 1))?;
        // Rows do different numbers of calls before the columns meet again.
        let mut of_row = vector(&[1u32 << rank]);
        for _ in 0..=rank / 3 {
            of_row = vector(&[1u32 << rank]);
            row.all_reduce(&mut of_row, Reduction::Sum)?;
        }
        let mut of_column = vector(&[1u32 << rank]);
        column.all_reduce(&mut of_column, Reduction::Sum)?;
        let mut of_pair = vector(&[1u32 << rank]);
        pair.all_reduce(&mut of_pair, Reduction::Sum)?;
        let mut other = vector(&[0u32]);
        column.send_recv((&vector(&[rank as u32]), 1 - column.rank()), (&mut other, 1 - column.rank()))?;
        communicator.barrier(&Device::cpu())?;
        Ok([of_row, of_column, of_pair, other].map(|tensor| tensor.to_vec().expect("it is read")[0]))
    }) {
        for (rank, [of_row, of_column, of_pair, other]) in results.into_iter().enumerate() {
            let (row, column) = (rank / 3, rank % 3);
            assert_eq!(of_row, 0b111 << (3 * row));
            assert_eq!(of_column, 0b1001 << column);
            let pair = if column == 1 { 0b010 } else { 0b101 };
            assert_eq!(of_pair, pair << (3 * row));
            assert_eq!(other as usize, (rank + 3) % 6);
        }
    }
}

#[test]
fn ranks_meet_by_ipv6_too() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("this host has no IPv6");
        return;
    };
    let port = listener.local_addr().expect("it has an address").port();
    drop(listener);
    let sums = met(Meeting::Address(format!("[::1]:{port}")), 3, LIMIT, |communicator| {
        let mut tensor = vector(&[communicator.rank() as f32 + 1.0]);
        communicator.all_reduce(&mut tensor, Reduction::Sum)?;
        Ok(tensor.to_vec()?)
    });
    for sum in sums {
        assert_eq!(sum.expect("all ranks come"), [6.0]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_meet_at_every_ipv6_address_of_this_host_by_its_interface() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("this host has no IPv6");
        return;
    }
    let known = std::fs::read_to_string("/proc/net/if_inet6").expect("Linux lists them");
    // Address, number of the interface, length of the prefix, scope, flags, interface.
    let hosts: Vec<_> = known
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let ip = Ipv6Addr::from(u128::from_str_radix(fields.first()?, 16).ok()?);
            let number = u32::from_str_radix(fields.get(1)?, 16).ok()?;
            Some([format!("[{ip}%{number}]"), format!("[{ip}%{}]", fields.get(5)?)])
        })
        .flatten()
        .collect();
    // The loopback's at least, and of most hosts link-local ones.
    assert!(hosts.iter().any(|host| host == "[::1%lo]"), "{hosts:?}");
    for host in hosts {
        let listener = TcpListener::bind("[::]:0").expect("a port is free");
        let port = listener.local_addr().expect("it has one").port();
        drop(listener);
        let sums = met(Meeting::Address(format!("{host}:{port}")), 3, LIMIT, |communicator| {
            let mut tensor = vector(&[communicator.rank() as f32 + 1.0]);
            communicator.all_reduce(&mut tensor, Reduction::Sum)?;
            Ok(tensor.to_vec()?)
        });
        for sum in sums {
            assert_eq!(sum.expect("all ranks come"), [6.0], "{host}");
        }
    }
}

#[test]
fn work_beside_calls_leaves_as_many_multiprocessors_as_are_asked_for() -> Result<()> {
    let device = Device::emulator();
    let all = device.properties().multiprocessors;
    launch::threads_within(LIMIT, 2, |communicator| {
        let stream = device.default_stream();
        let found = |own: Option<u32>| {
            let communicator = communicator.with_multiprocessors(own);
            (communicator.multiprocessors(), communicator.beside(&stream).multiprocessors())
        };
        // Host memory has no kernels.
        assert_eq!(found(None), (0, all));
        assert_eq!([found(Some(0)), found(Some(7)), found(Some(all))], [(0, all), (7, all - 7), (all, 1)]);
        // What one leaves is there for the other too.
        for (one, other) in [(3, 20), (20, 3), (7, 7), (0, 5), (5, 0), (all, 1), (1, all + 1)] {
            let [outer, inner] = [one, other].map(|own| communicator.with_multiprocessors(own));
            let left = inner.beside(&outer.beside(&stream)).multiprocessors();
            assert_eq!(left, all.saturating_sub(one.max(other)).max(1), "{one} and {other}");
            let limited = stream.with_multiprocessors(all.saturating_sub(one));
            let left = inner.beside(&limited).multiprocessors();
            assert_eq!(left, all.saturating_sub(one.max(other)).max(1), "a limit for {one} and {other}");
        }
        Ok(())
    })?;
    launch::threads_within(LIMIT, 1, |communicator| {
        let beside = communicator.with_multiprocessors(7).beside(&device.default_stream());
        assert_eq!(beside.multiprocessors(), all, "nothing is sent");
        Ok(())
    })
    .map(drop)
}
