//! Ranks that disagree, do not come, end or panic: every other rank gets an error that names them, and nobody waits for ever.

use std::time::{Duration, Instant};

use warpsmith::{Device, Tensor};
use warpsmith_parallel::launch::{self, Launch, Meeting};
use warpsmith_parallel::{Communicator, Error, Failure, Reduction, Result};

use crate::support::{LIMIT, free_port, over_tcp, vector};

/// A limit for ranks that do not come.
const SHORT: Duration = Duration::from_millis(300);

/// The errors of ranks of which some fail, both kinds.
fn failures(
    size: usize,
    limit: Duration,
    work: impl Fn(Communicator) -> Result<()> + Sync,
) -> [Vec<Result<()>>; 2] {
    let start = Instant::now();
    let local = launch::all_threads(limit, size, &work).expect("there are ranks");
    let tcp = over_tcp(size, limit, &work);
    assert!(start.elapsed() < 2 * LIMIT);
    [local, tcp]
}

fn sum(communicator: &Communicator, count: usize) -> Result<()> {
    communicator.all_reduce(&mut vector(&vec![1.0f32; count]), Reduction::Sum)
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for results in failures(4, SHORT, |communicator| {
        if communicator.rank() == 2 {
            std::thread::sleep(4 * SHORT);
            return Ok(());
        }
        sum(&communicator, 3)
    }) {
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(()) => assert_eq!(rank, 2),
                Err(Error::Failure(Failure::Late { ranks, call, .. })) => {
                    assert_eq!(ranks, [2]);
                    assert_eq!(call, "all_reduce (sum) of 3 f32 as call 0");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_rank_that_has_ended_is_named_at_once() {
    for results in failures(4, LIMIT, |communicator| {
        sum(&communicator, 3)?;
        if communicator.rank() == 1 {
            return Ok(());
        }
        sum(&communicator, 3)
    }) {
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(()) => assert_eq!(rank, 1),
                Err(Error::Failure(Failure::Lost { rank: lost, reason, .. })) => {
                    assert_eq!(lost, 1);
                    assert!(reason.contains("dropped"), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn messages_with_a_rank_that_has_ended_fail_at_once() {
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [Call; 3] = [
        |communicator| communicator.recv(&mut vector(&[0f32; 3]), 1),
        |communicator| communicator.send(&vector(&[0f32; 3]), 1),
        |communicator| communicator.send_recv((&vector(&[0f32; 3]), 1), (&mut vector(&[0f32; 3]), 1)),
    ];
    for call in calls {
        let start = Instant::now();
        for results in failures(3, LIMIT, |communicator| {
            // Rank 1 leaves the group, and is still there for others: nothing says that it is gone.
            let group = communicator.split(0)?;
            if group.rank() == 1 {
                group.send(&vector(&[7f32]), 0)?;
                drop(group);
                return communicator.barrier(&Device::cpu());
            }
            if group.rank() == 0 {
                // What it has sent before arrives.
                let mut sent = vector(&[0f32]);
                group.recv(&mut sent, 1)?;
                assert_eq!(sent.to_vec()?, [7.0]);
                // Both ways know of it by then.
                std::thread::sleep(SHORT);
                call(&group)?;
            }
            communicator.barrier(&Device::cpu())
        }) {
            for result in results {
                match result.expect_err("all ranks hear of it") {
                    Error::Failure(Failure::Lost { rank, call, reason }) => {
                        assert_eq!((rank, call.as_str()), (1, "send or recv of 3 f32"));
                        assert!(reason.contains("dropped"), "{reason}");
                    }
                    error => panic!("{error}"),
                }
            }
        }
        assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    }
}

#[test]
fn a_rank_that_has_left_a_group_is_named_at_once() {
    let start = Instant::now();
    for results in failures(3, LIMIT, |communicator| {
        let group = communicator.split(0)?;
        sum(&group, 3)?;
        if group.rank() == 1 {
            drop(group);
            return sum(&communicator, 3);
        }
        sum(&group, 3)
    }) {
        for result in results {
            match result.expect_err("all ranks hear of it") {
                Error::Failure(Failure::Lost { rank, .. }) => assert_eq!(rank, 1),
                error => panic!("{error}"),
            }
        }
    }
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_panics_is_named_and_its_panic_is_returned() {
    let work = |communicator: Communicator| {
        assert!(communicator.rank() != 2, "as a test");
        sum(&communicator, 3)
    };
    for (rank, result) in
        launch::all_threads(LIMIT, 3, work).expect("there are ranks").into_iter().enumerate()
    {
        match result.expect_err("all fail") {
            Error::Panicked { rank: named, message } => {
                assert_eq!((named, rank, message.as_str()), (2, 2, "as a test"))
            }
            Error::Failure(Failure::Lost { rank: lost, reason, .. }) => {
                assert_eq!((lost, reason.as_str()), (2, "its thread panicked"));
            }
            error => panic!("{error}"),
        }
    }
    let error = launch::threads(3, work).expect_err("one panics");
    assert!(matches!(error, Error::Panicked { rank: 2, .. }), "{error}");
}

#[test]
fn ranks_that_disagree_say_who_calls_what() {
    type Call = fn(&Communicator) -> Result<()>;
    let others: [(Call, &str); 5] = [
        (|communicator| sum(communicator, 4), "all_reduce (sum) of 4 f32"),
        (
            |communicator| communicator.all_reduce(&mut vector(&[0i32; 3]), Reduction::Sum),
            "all_reduce (sum) of 3 i32",
        ),
        (
            |communicator| communicator.all_reduce(&mut vector(&[0f32; 3]), Reduction::Max),
            "all_reduce (max) of 3 f32",
        ),
        (|communicator| communicator.broadcast(&mut vector(&[0f32; 3]), 1), "broadcast from rank 1 of 3 f32"),
        (|communicator| communicator.barrier(&Device::cpu()), "barrier"),
    ];
    for (other, words) in others {
        for results in failures(3, LIMIT, |communicator| match communicator.rank() {
            1 => other(&communicator),
            _ => sum(&communicator, 3),
        }) {
            for result in results {
                let error = result.expect_err("they disagree").to_string();
                assert!(error.contains("rank 1") && error.contains(words), "{error}");
                assert!(error.contains("all_reduce (sum) of 3 f32 as call 0"), "{error}");
            }
        }
    }
}

#[test]
fn what_is_sent_has_to_be_what_is_received() {
    for results in failures(2, LIMIT, |communicator| match communicator.rank() {
        0 => communicator.send(&vector(&[1.0f32; 3]), 1),
        _ => communicator.recv(&mut vector(&[1.0f32; 4]), 0),
    }) {
        let error = results[1].as_ref().expect_err("they disagree").to_string();
        assert!(error.contains("of 3 f32") && error.contains("of 4 f32"), "{error}");
    }
    for results in failures(2, LIMIT, |communicator| {
        let counts = if communicator.rank() == 0 { [1, 2] } else { [1, 1] };
        let input = vector(&vec![0u8; counts.iter().sum()]);
        communicator.all_to_all_v(&input, &counts, &mut vector(&[0u8; 2]), &[1, 1])
    }) {
        let error = results[1].as_ref().expect_err("they disagree").to_string();
        assert!(error.contains("receiving 1 elements") && error.contains("sending 2 elements"), "{error}");
    }
}

#[test]
fn a_failed_communicator_stays_failed() {
    for results in failures(2, SHORT, |communicator| {
        if communicator.rank() == 1 {
            std::thread::sleep(2 * SHORT);
            return Ok(());
        }
        let first = sum(&communicator, 1).expect_err("nobody comes").to_string();
        let second = sum(&communicator, 1).expect_err("it has failed").to_string();
        assert_eq!(first, second);
        let sent = communicator.send(&vector(&[0u8]), 1).expect_err("it has failed").to_string();
        assert_eq!(first, sent);
        Ok(())
    }) {
        for result in results {
            result.expect("it is as expected");
        }
    }
}

#[test]
fn arguments_are_checked_before_anything_is_sent() -> Result<()> {
    let device = Device::cpu();
    let communicator = Communicator::local(2, SHORT)?.remove(0);
    let expect = |result: Result<()>, words: &str| {
        let error = result.expect_err("it does not fit").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    };
    let matrix = Tensor::<f32>::zeros(&device, [4, 4])?;
    let mut columns = matrix.slice(1, 0..2)?;
    expect(communicator.all_reduce(&mut columns, Reduction::Sum), "contiguous");
    let mut rows = matrix.slice(0, 0..2)?;
    expect(communicator.all_gather(&matrix.slice(0, 1..2)?, &mut rows), "memory of its own");
    let mut three = vector(&[0f32; 3]);
    expect(communicator.all_gather(&vector(&[0f32; 2]), &mut three), "expected 4 elements");
    expect(
        communicator.reduce_scatter(&vector(&[0f32; 2]), &mut three, Reduction::Sum),
        "expected 6 elements",
    );
    expect(communicator.all_to_all(&vector(&[0f32; 3]), &mut three), "2 parts");
    expect(communicator.broadcast(&mut three, 2), "root is 2, expected a rank below 2");
    expect(communicator.send(&three, 0), "another rank");
    expect(communicator.recv(&mut three, 9), "a rank below 2");
    expect(communicator.all_to_all_v(&vector(&[0f32; 3]), &[3], &mut three, &[3]), "each of 2 ranks");
    expect(
        communicator.all_to_all_v(&vector(&[0f32; 3]), &[1, 1], &mut three, &[1, 2]),
        "expected 2 elements",
    );
    let other = Device::emulator().new_stream()?;
    expect(communicator.on(&other).all_reduce(&mut three, Reduction::Sum), "on emulator");
    let error = Communicator::local(0, SHORT).expect_err("there are no ranks").to_string();
    assert!(error.contains("size is 0, expected at least 1"), "{error}");
    Ok(())
}

/// The errors of processes that meet with these ranks and numbers of ranks.
fn meet(ranks: &[(usize, usize)], limit: Duration) -> Vec<Result<()>> {
    let meeting = Meeting::Address(format!("127.0.0.1:{}", free_port()));
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|&(rank, size)| {
                let meeting = meeting.clone();
                scope.spawn(move || {
                    Communicator::connect(&Launch { rank, size, local_rank: rank, meeting }, limit).map(drop)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn ranks_that_do_not_fit_together_do_not_meet() {
    for result in meet(&[(0, 2), (1, 3)], LIMIT) {
        let error = result.expect_err("sizes differ");
        assert!(matches!(error, Error::WorldSize { rank: 1, expected: 2, actual: 3 }), "{error}");
    }
    let results = meet(&[(0, 3), (1, 3), (1, 3)], LIMIT);
    for result in results {
        let error = result.expect_err("a rank comes twice");
        assert!(matches!(error, Error::DuplicateRank { rank: 1, size: 3 }), "{error}");
    }
    for result in meet(&[(0, 4), (2, 4)], SHORT) {
        let error = result.expect_err("two do not come");
        assert!(matches!(&error, Error::MissingRanks { ranks, .. } if ranks == &[1, 3]), "{error}");
    }
    for result in meet(&[(1, 2)], SHORT) {
        let error = result.expect_err("rank 0 does not come");
        assert!(matches!(&error, Error::MissingRanks { ranks, .. } if ranks == &[0]), "{error}");
    }
}

#[test]
fn ranks_meet_in_a_file_that_an_earlier_run_has_left() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("meeting");
    std::fs::write(&path, format!("127.0.0.1:{}", free_port()))?;
    let sums: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let path = path.clone();
                scope.spawn(move || {
                    // Rank 0 comes last.
                    std::thread::sleep(Duration::from_millis(if rank == 0 { 200 } else { 0 }));
                    let communicator =
                        Communicator::connect(&Launch::new(rank, 3, Meeting::File(path))?, LIMIT)?;
                    let mut tensor = vector(&[rank as u32]);
                    communicator.all_reduce(&mut tensor, Reduction::Sum)?;
                    Ok(tensor.to_vec()?[0])
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<_>>()
    })
    .expect("they meet");
    assert_eq!(sums, [3, 3, 3]);
    assert!(!path.exists());
    Ok(())
}

#[test]
fn a_group_names_the_ranks_of_all() {
    for results in failures(4, SHORT, |communicator| {
        let group = communicator.split(communicator.rank() as u64 % 2)?;
        if communicator.rank() == 3 {
            std::thread::sleep(4 * SHORT);
            return Ok(());
        }
        sum(&group, 1)?;
        // Of the other group, which hears of it here.
        sum(&communicator, 1)
    }) {
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(()) => assert_eq!(rank, 3),
                Err(Error::Failure(Failure::Late { ranks, .. })) => assert_eq!(ranks.last(), Some(&3)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_limit_may_be_as_long_as_a_duration() -> Result<()> {
    let sums = launch::threads_within(Duration::MAX, 2, |communicator| {
        let mut tensor = Tensor::from_slice(&Device::cpu(), &[1.0f32], [1])?;
        communicator.all_reduce(&mut tensor, Reduction::Sum)?;
        Ok(tensor.to_vec()?)
    })?;
    assert_eq!(sums, [[2.0], [2.0]]);
    Ok(())
}
