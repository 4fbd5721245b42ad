//! Steps through caches of every size, on the devices that a test has: what a reader finds is what was written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::faults::Point;
use super::{CachedRows, NONE, Part, Step};
use crate::peer::{CacheOptions, CacheStatistics};
use crate::{Device, DeviceKind, EmulatorOptions, Error, Result, Stream, Tensor};

/// Bytes of row `row` in its `version`, none of which are the poison.
fn contents(row: usize, version: u8, row_bytes: usize) -> Vec<u8> {
    (0..row_bytes).map(|i| ((row * 31 + i * 7 + usize::from(version) * 3) % 251) as u8).collect()
}

fn filled(device: &Device, rows: usize, row_bytes: usize, options: CacheOptions) -> CachedRows {
    let mut cached = CachedRows::new(device, rows, row_bytes, &options).expect("there is memory for it");
    for row in 0..rows {
        cached.write(row, &contents(row, 0, row_bytes)).expect("a row");
    }
    cached
}

/// What work that reads `ids` finds by the step's map.
fn read(cached: &CachedRows, step: &Step, ids: &[u32]) -> Vec<Vec<u8>> {
    let map = cached.maps[step.map].slot_of.to_vec().expect("the map is initialised");
    let slots = cached.slots.to_vec().expect("slots can be read");
    let row_bytes = cached.row_bytes();
    let find = |&id: &u32| match map[id as usize] {
        NONE => cached.read(id as usize).expect("a row"),
        slot => slots[slot as usize * row_bytes..][..row_bytes].to_vec(),
    };
    ids.iter().map(find).collect()
}

fn ids(rows: usize, steps: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % below
    };
    (0..steps)
        .map(|_| {
            let count = random(12);
            // Squaring prefers the first rows.
            (0..count).map(|_| (random(rows) * random(rows) / rows) as u32).collect()
        })
        .collect()
}

/// Starts a step from ids that the device has, or the host.
fn stage(cached: &mut CachedRows, ids: &[u32], is_on_device: bool) -> Result<Step> {
    if !is_on_device {
        return cached.stage(ids);
    }
    let device = cached.device().clone();
    let ids = Tensor::from_slice(&device, ids, [ids.len()])?;
    cached.stage_ids(&ids, &device.default_stream())
}

fn devices() -> [Device; 2] {
    [Device::cpu(), Device::emulator()]
}

/// Uses rows that are behind, on a device that refuses to be waited for so many times more.
fn nothing_is_written_before_the_device_could_be_waited_for(
    cached: &mut CachedRows,
    ids: &[u32],
    is_on_device: bool,
    refusals: usize,
) {
    let held = |cached: &CachedRows| {
        let rows = cached.host.read(0, cached.host.bytes()).expect("rows can be read");
        let slots = cached.slots.to_vec().expect("slots can be read");
        (rows, slots, cached.cache().slots(), cached.resets)
    };
    let before = held(cached);
    for turn in 0..refusals {
        assert_eq!(cached.failures_left(), refusals - turn);
        let row = vec![0xaa; cached.row_bytes()];
        let refused = match turn % 3 {
            0 => stage(cached, ids, is_on_device).map(drop),
            1 => cached.write(0, &row),
            _ => cached.resize(1 + turn),
        };
        let error = refused.expect_err("the device cannot be waited for").to_string();
        assert!(error.contains("at Synchronize"), "{error}");
        assert!(cached.is_behind, "there is still work to wait for");
        assert_eq!(held(cached), before);
    }
    assert_eq!(cached.failures_left(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn readers_find_their_rows_while_the_next_step_is_staged(
        rows in 1usize..30, slots in 1usize..34, chunks in 1usize..70, poison: bool, seed: u64,
        on_device: u16,
    ) {
        for device in devices() {
            let row_bytes = 16 * chunks;
            let options = CacheOptions::default().slots(slots).poison(poison);
            let mut cached = filled(&device, rows, row_bytes, options);
            let stream = device.new_stream().unwrap();
            let mut flying: VecDeque<(Step, Vec<u32>)> = VecDeque::new();
            for (number, ids) in ids(rows, 12, seed).into_iter().enumerate() {
                let step = stage(&mut cached, &ids, on_device >> number & 1 != 0).unwrap();
                cached.begin_reading(&step, &stream).unwrap();
                flying.push_back((step, ids));
                for (step, ids) in &flying {
                    let expected: Vec<_> =
                        ids.iter().map(|&id| contents(id as usize, 0, row_bytes)).collect();
                    prop_assert_eq!(read(&cached, step, ids), expected);
                }
                let (last, _) = flying.back().unwrap();
                let map = cached.maps[last.map].slot_of.to_vec().unwrap();
                prop_assert_eq!(map, cached.cache().slot_of(), "the map of the last step is up to date");
                if flying.len() == 2 {
                    cached.release(flying.pop_front().unwrap().0, &stream).unwrap();
                }
            }
            for (step, _) in flying {
                cached.release(step, &stream).unwrap();
            }
            prop_assert_eq!(cached.cache().pinned(), 0);
            let statistics = cached.statistics();
            prop_assert_eq!(statistics.hits + statistics.misses, statistics.requests);
            prop_assert!(statistics.residents <= slots.min(rows) as u64);
            let heat: u64 = cached.heat().unwrap().into_iter().map(u64::from).sum();
            prop_assert_eq!(heat, statistics.unique);
        }
    }

    #[test]
    fn a_step_is_the_same_wherever_its_ids_are_and_on_every_device(
        rows in 1usize..700, share in 1usize..=100, length in 0usize..400, skewed: bool, seed: u64,
        faults in prop::collection::vec(prop_oneof![
            9 => Just(None), 1 => Just(Some(Point::Plan)), 1 => Just(Some(Point::Record)),
            1 => Just(Some(Point::Allocation)),
        ], 8),
    ) {
        let slots = (rows * share).div_ceil(100);
        let new = |device: &Device| {
            let options = CacheOptions::default().slots(slots).poison(seed % 2 == 0);
            CachedRows::new(device, rows, 16, &options).unwrap()
        };
        let [cpu, emulator] = devices();
        let mut caches = [(new(&cpu), false), (new(&cpu), true), (new(&emulator), false), (new(&emulator), true)];
        let mut flying: [Option<Step>; 4] = [const { None }; 4];
        let mut state = seed | 1;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for fault in faults {
            let mut id = || if skewed { random(rows) * random(rows) / rows } else { random(rows) };
            let ids: Vec<u32> = (0..length).map(|_| id() as u32).collect();
            let mut seen = Vec::new();
            for ((cached, is_on_device), flying) in caches.iter_mut().zip(&mut flying) {
                cached.fail(fault.map(|point| (point, 0)));
                let staged = stage(cached, &ids, *is_on_device);
                prop_assert_eq!(staged.is_err(), fault.is_some(), "{:?}", staged);
                let stream = cached.device().default_stream();
                // A step from before a reset is no more.
                let before = match staged {
                    Ok(step) => flying.replace(step),
                    Err(_) => flying.take(),
                };
                if let Some(step) = before.filter(|step| step.resets == cached.resets) {
                    cached.release(step, &stream).unwrap();
                }
                let cache = cached.cache();
                seen.push((
                    CacheStatistics { stalls: 0, ..cache.statistics() },
                    cache.slot_of().to_vec(),
                    cache.owner_of().to_vec(),
                    cache.pinned(),
                    cached.heat().unwrap(),
                ));
            }
            for other in &seen[1..] {
                prop_assert_eq!(&seen[0], other);
            }
        }
    }

    #[test]
    fn another_number_of_slots_changes_no_row_and_starts_anew(
        rows in 1usize..30, sizes in prop::collection::vec(1usize..34, 1..5), poison: bool, seed: u64,
    ) {
        for device in devices() {
            let options = CacheOptions::default().slots(3).poison(poison);
            let mut cached = filled(&device, rows, 48, options);
            let stream = device.new_stream().unwrap();
            for (&slots, ids) in sizes.iter().zip(ids(rows, 5, seed)) {
                cached.resize(slots).unwrap();
                prop_assert_eq!(cached.cache().slots(), slots.min(rows));
                prop_assert_eq!(cached.statistics(), CacheStatistics::default());
                // The last rows, as many as there are slots for.
                let slots = slots.min(rows);
                let last: Vec<u32> = (rows - slots..rows).map(|row| row as u32).collect();
                cached.prefetch(&last).unwrap();
                prop_assert_eq!(cached.cache().pinned(), 0);
                prop_assert!(last.iter().all(|&row| cached.cache().slot(row).is_some()));
                let misses = cached.statistics().misses;
                let step = cached.stage(&ids).unwrap();
                prop_assert!(cached.resize(1).is_err(), "a step is under way");
                cached.begin_reading(&step, &stream).unwrap();
                let expected: Vec<_> = ids.iter().map(|&id| contents(id as usize, 0, 48)).collect();
                prop_assert_eq!(read(&cached, &step, &ids), expected);
                cached.release(step, &stream).unwrap();
                let missed = ids.iter().filter(|id| !last.contains(id)).count() as u64;
                prop_assert_eq!(cached.statistics().misses - misses, missed);
            }
            prop_assert!(cached.resize(0).is_err());
        }
    }

    #[test]
    fn a_step_that_fails_anywhere_is_an_error_and_leaves_the_cache_consistent(
        rows in 1usize..20, slots in 1usize..20, poison: bool, seed: u64,
        faults in prop::collection::vec(prop_oneof![
            3 => Just(None), 1 => Just(Some(Point::Plan)), 1 => Just(Some(Point::Allocation)),
            1 => Just(Some(Point::Copy)), 1 => Just(Some(Point::Record)), 1 => Just(Some(Point::Note)),
            1 => Just(Some(Point::Return)), 1 => Just(Some(Point::Wait)),
        ], 12),
        refusals in prop::collection::vec(0usize..5, 12),
        on_device: u16,
    ) {
        for device in devices() {
            let options = CacheOptions::default().slots(slots).poison(poison);
            let mut cached = filled(&device, rows, 48, options);
            let stream = device.default_stream();
            let mut before: Option<(Step, Vec<u32>)> = None;
            for (number, (ids, &fault)) in ids(rows, 12, seed).into_iter().zip(&faults).enumerate() {
                let (resets, is_on_device) = (cached.resets, on_device >> number & 1 != 0);
                // The device is not well again at once.
                let refusals = if fault.is_some() { refusals[number] } else { 0 };
                let refused = std::iter::repeat_n((Point::Synchronize, 0), refusals);
                cached.fail(fault.map(|point| (point, 0)).into_iter().chain(refused));
                let result = stage(&mut cached, &ids, is_on_device);
                // A step without copies has no place for some of them, nor has one without notes.
                let failed = fault.is_some() && cached.failures_left() <= refusals;
                prop_assert_eq!(result.is_err(), failed);
                if let (Err(error), Some(fault)) = (&result, fault) {
                    let error = error.to_string();
                    prop_assert!(error.contains(&format!("at {fault:?}")), "what failed first: {}", error);
                }
                let is_behind = cached.resets != resets && refusals != 0;
                prop_assert_eq!(cached.is_behind, is_behind, "every step begins by catching up");
                if is_behind {
                    nothing_is_written_before_the_device_could_be_waited_for(
                        &mut cached, &ids, is_on_device, refusals - 1,
                    );
                }
                cached.fail(None);
                if cached.resets != resets {
                    // Whatever was staged before has been forgotten as well.
                    prop_assert_eq!(cached.cache().pinned(), 0);
                    prop_assert_eq!(cached.statistics().residents, 0);
                    if let Some((step, _)) = before.take() {
                        prop_assert!(cached.begin_reading(&step, &stream).is_err());
                        prop_assert!(cached.release(step, &stream).is_err());
                    }
                }
                if let Some((step, ids)) = &before {
                    let expected: Vec<_> = ids.iter().map(|&id| contents(id as usize, 0, 48)).collect();
                    prop_assert_eq!(read(&cached, step, ids), expected, "an earlier step is as it was");
                }
                let heat: u64 = cached.heat().unwrap().into_iter().map(u64::from).sum();
                prop_assert_eq!(heat, cached.statistics().unique, "a step that fails is not counted");
                if let Ok(step) = result {
                    let expected: Vec<_> = ids.iter().map(|&id| contents(id as usize, 0, 48)).collect();
                    prop_assert_eq!(read(&cached, &step, &ids), expected);
                    if let Some((step, _)) = before.replace((step, ids)) {
                        cached.release(step, &stream).unwrap();
                    }
                }
                let owners = cached.cache().owner_of();
                for (slot, &row) in owners.iter().enumerate().filter(|(_, row)| **row != NONE) {
                    prop_assert_eq!(cached.cache().slot(row), Some(slot as u32));
                }
            }
            if let Some((step, _)) = before {
                cached.release(step, &stream).unwrap();
            }
            prop_assert_eq!(cached.cache().pinned(), 0);
        }
    }
}

#[test]
fn rows_can_be_written_between_steps_and_not_during_one() {
    for device in devices() {
        let mut cached = filled(&device, 5, 32, CacheOptions::default().slots(2));
        let stream = device.default_stream();
        let step = cached.stage(&[1, 2]).unwrap();
        assert!(matches!(cached.write(1, &[0; 32]), Err(Error::Argument { .. })));
        cached.release(step, &stream).unwrap();
        cached.write(1, &contents(1, 9, 32)).unwrap();
        let step = cached.stage(&[2, 1, 4]).unwrap();
        let expected = [contents(2, 0, 32), contents(1, 9, 32), contents(4, 0, 32)];
        assert_eq!(read(&cached, &step, &[2, 1, 4]), expected);
        cached.release(step, &stream).unwrap();
        assert!(cached.write(5, &[0; 32]).is_err());
        assert!(cached.write(0, &[0; 31]).is_err());
        assert!(cached.read(5).is_err());
    }
}

#[test]
fn rows_that_work_may_still_read_are_neither_written_nor_given_other_slots() {
    for device in devices() {
        let mut cached = filled(&device, 5, 32, CacheOptions::default().slots(2));
        let stream = device.default_stream();
        let step = cached.stage(&[1, 2]).unwrap();
        cached.release(step, &stream).unwrap();
        for attempt in
            [|cached: &mut CachedRows| cached.write(1, &[9; 32]), |cached: &mut CachedRows| cached.resize(3)]
        {
            cached.fail([(Point::Finish, 0)]);
            let error = attempt(&mut cached).unwrap_err().to_string();
            assert!(error.contains("at Finish"), "{error}");
            assert_eq!((cached.cache().slots(), cached.statistics().residents), (2, 2));
        }
        let step = cached.stage(&[2, 1]).unwrap();
        assert_eq!(read(&cached, &step, &[2, 1]), [contents(2, 0, 32), contents(1, 0, 32)]);
        cached.release(step, &stream).unwrap();
    }
}

#[test]
fn what_work_may_still_read_is_not_freed_when_it_cannot_be_waited_for() {
    use Point::{Finish, Synchronize};
    for is_on_device in [false, true] {
        // Whether a step is under way and whether there was a reset, what fails in the reset and when all is dropped, and whether it is freed.
        for (is_read, is_reset, points, is_freed) in [
            (false, false, &[][..], true),
            (false, false, &[Finish], false),
            (true, false, &[], true),
            (true, false, &[Synchronize], false),
            (false, true, &[Synchronize], true),
            (false, true, &[Synchronize, Finish], false),
            (false, true, &[Synchronize, Synchronize], false),
        ] {
            let device = Device::emulator();
            let mut cached = filled(&device, 50, 32, CacheOptions::default().slots(7));
            let stream = device.default_stream();
            for ids in [[1, 2], [3, 4]] {
                let step = stage(&mut cached, &ids, is_on_device).unwrap();
                cached.release(step, &stream).unwrap();
            }
            let step = is_read.then(|| stage(&mut cached, &[5, 6], is_on_device).unwrap());
            cached.fail(points.iter().map(|&point| (point, 0)));
            if is_reset {
                cached.reset();
                assert!(cached.is_behind);
            }
            let lists = cached.maps.iter().map(|map| map.lists.memory.as_ref().unwrap().bytes());
            let shared = (cached.host.bytes() + lists.sum::<usize>()) as u64;
            drop(cached);
            drop(step);
            let used = device.memory_stats().unwrap().used;
            let expected = if is_freed { 0 } else { shared };
            assert_eq!(used, expected, "{points:?}, read: {is_read}, reset: {is_reset}");
        }
    }
}

#[test]
fn steps_whose_copies_are_done_after_the_work_before_them_are_stalls() {
    // Copies that are done long after the host has enqueued what reads them: here they are done before.
    let late = |stream: &Stream| Arc::new(stream.record().unwrap().later(Duration::from_secs(3600)));
    for device in devices() {
        for is_on_device in [false, true] {
            let mut cached = filled(&device, 9, 32, CacheOptions::default().slots(5));
            let stream = device.new_stream().unwrap();
            let mut stalls = 0;
            for (number, is_late) in (0u32..).zip([false, true, true, false, true, false]) {
                let mut step = stage(&mut cached, &[number, number + 1], is_on_device).unwrap();
                if is_late {
                    step.ready = late(&stream);
                    stalls += 1;
                }
                cached.begin_reading(&step, &stream).unwrap();
                cached.release(step, &stream).unwrap();
                assert_eq!(cached.statistics().stalls, stalls, "step {number}");
            }
            // One that nothing has read waits for nothing.
            let mut step = stage(&mut cached, &[1], is_on_device).unwrap();
            step.ready = late(&stream);
            cached.release(step, &stream).unwrap();
            assert_eq!(cached.statistics().stalls, stalls);
            let mut step = stage(&mut cached, &[2], is_on_device).unwrap();
            step.ready = late(&stream);
            cached.begin_reading(&step, &stream).unwrap();
            cached.release(step, &stream).unwrap();
            let _step = stage(&mut cached, &[3], is_on_device).unwrap();
            assert_eq!(cached.cache().statistics().stalls, stalls + 1);
        }
    }
}

#[test]
fn three_steps_at_a_time_and_steps_of_another_cache_are_errors() {
    let device = Device::emulator();
    let mut cached = filled(&device, 5, 16, CacheOptions::default().slots(2));
    let mut other = filled(&device, 5, 16, CacheOptions::default().slots(2));
    let stream = device.default_stream();
    let (first, second) = (cached.stage(&[0]).unwrap(), cached.stage(&[1]).unwrap());
    let error = cached.stage(&[2]).unwrap_err().to_string();
    assert!(error.contains("less than 2"), "{error}");
    assert!(other.begin_reading(&first, &stream).is_err());
    assert!(cached.begin_reading(&first, &Device::cpu().default_stream()).is_err());
    assert!(matches!(
        cached.end_reading(&Device::cpu().default_stream()),
        Err(Error::DeviceMismatch { operand: "stream", .. })
    ));
    let captured = device.new_stream().unwrap();
    {
        let work = || cached.begin_reading(&first, &captured);
        // SAFETY: nothing is enqueued.
        let refused = unsafe { captured.capture(work) };
        assert!(matches!(refused, Err(Error::Argument { argument: "stream", .. })), "{refused:?}");
    }
    assert!(cached.stage(&[5]).is_err());
    assert!(other.release(second, &stream).is_err());
    cached.release(first, &stream).unwrap();
    assert_eq!(cached.cache().pinned(), 1);
    cached.reset();
    assert_eq!(cached.cache().pinned(), 0);
    let step = cached.stage(&[2]).unwrap();
    let elsewhere = Device::cpu().default_stream().record().unwrap();
    let error = cached.release_after(step, elsewhere);
    assert!(matches!(error, Err(Error::DeviceMismatch { operand: "read", .. })), "{error:?}");
    // It is dropped with a step under way.
}

#[test]
fn sizes_that_are_none_and_too_little_memory_are_errors() {
    let device = Device::emulator_with(EmulatorOptions { memory: 1 << 20, ..EmulatorOptions::default() });
    let new = |rows, row_bytes, slots| {
        CachedRows::new(&device, rows, row_bytes, &CacheOptions::default().slots(slots)).map(drop)
    };
    for row_bytes in [0, 8, 17] {
        assert!(matches!(new(4, row_bytes, 1), Err(Error::Argument { argument: "row_bytes", .. })));
    }
    assert!(matches!(new(usize::MAX / 16, 32, 1), Err(Error::SizeLimit { .. })));
    assert!(matches!(new(1 << 32, 16, 1), Err(Error::SizeLimit { quantity: "number of rows", .. })));
    assert!(matches!(new(1 << 20, 32, 1), Err(Error::OutOfMemory { .. })), "no room for the rows");
    assert!(matches!(new(1 << 10, 768, 1 << 10), Err(Error::OutOfMemory { .. })), "no room for the slots");
    new(1 << 10, 768, 10).unwrap();
    new(0, 16, 1).unwrap();
    assert_eq!(device.memory_stats().unwrap().used, 0, "everything was freed");
    let mut none = CachedRows::new(&device, 0, 16, &CacheOptions::default()).unwrap();
    let step = none.stage(&[]).unwrap();
    none.release(step, &device.default_stream()).unwrap();
}

#[test]
fn what_is_forgotten_is_poisoned_before_the_slots_are_used_again() {
    let device = Device::emulator();
    let mut cached = filled(&device, 9, 16, CacheOptions::default().slots(4).poison(true));
    let stream = device.default_stream();
    let step = cached.stage(&[0, 1, 2, 3]).unwrap();
    cached.release(step, &stream).unwrap();
    let poisoned = |cached: &CachedRows| {
        let slots = cached.slots.to_vec().unwrap();
        slots.chunks(16).filter(|slot| slot.iter().all(|&byte| byte == 0xff)).count()
    };
    assert_eq!(poisoned(&cached), 0);
    cached.reset();
    let step = cached.stage(&[5]).unwrap();
    assert_eq!(poisoned(&cached), 3, "all but the one that is taken");
    cached.release(step, &stream).unwrap();
}

#[test]
fn a_default_capacity_fits_into_the_memory_that_is_free() {
    let device = Device::emulator_with(EmulatorOptions { memory: 1 << 20, ..EmulatorOptions::default() });
    // Whoever runs the tests may have set the variable.
    if std::env::var_os(crate::peer::CAPACITY_VARIABLE).is_none() {
        let cached = CachedRows::new(&device, 100, 256, &CacheOptions::default()).unwrap();
        assert_eq!(cached.cache().slots(), 100);
    }
    assert_eq!(device.kind(), DeviceKind::Emulator);
}

#[test]
fn ids_on_the_device_may_have_any_shape_and_are_looked_at_as_they_are() {
    for device in devices() {
        let mut cached = filled(&device, 100, 32, CacheOptions::default().slots(7));
        let stream = device.new_stream().unwrap();
        let all: Vec<u32> = (0..60).map(|i| i * 37 % 100).collect();
        let ids = Tensor::from_slice(&device, &all, [3, 4, 5]).unwrap();
        for ids in [
            ids.clone(),
            ids.swap_axes(0, 2).unwrap(),
            ids.slice(1, 1..3).unwrap(),
            ids.slice(0, 2..2).unwrap(),
        ] {
            let step = cached.stage_ids(&ids, &stream).unwrap();
            let ids = ids.to_vec().unwrap();
            let expected: Vec<_> = ids.iter().map(|&id| contents(id as usize, 0, 32)).collect();
            assert_eq!(read(&cached, &step, &ids), expected);
            cached.release(step, &stream).unwrap();
        }
        let elsewhere = Tensor::from_slice(&Device::emulator(), &[0u32], [1]).unwrap();
        assert!(matches!(
            cached.stage_ids(&elsewhere, &stream),
            Err(Error::DeviceMismatch { operand: "ids", .. })
        ));
        let foreign = Device::emulator().default_stream();
        assert!(matches!(
            cached.stage_ids(&ids, &foreign),
            Err(Error::DeviceMismatch { operand: "stream", .. })
        ));
    }
}

#[test]
fn the_first_id_of_no_row_is_named_and_nothing_is_staged() {
    for device in devices() {
        let mut cached = filled(&device, 70, 16, CacheOptions::default().slots(70));
        let stream = device.default_stream();
        let first = cached.stage(&[1, 69]).unwrap();
        let before = (cached.statistics(), cached.cache().slot_of().to_vec(), cached.heat().unwrap());
        for (position, id) in [(0, 70), (31, u32::MAX), (600, 71), (999, 96)] {
            let mut ids: Vec<u32> = (0..1000).map(|i| i % 70).collect();
            // Others follow it, and smaller ones.
            ids[position..].iter_mut().step_by(13).for_each(|id| *id = 1000);
            ids[position] = id;
            for is_on_device in [false, true] {
                let error = stage(&mut cached, &ids, is_on_device).unwrap_err();
                assert!(matches!(error, Error::Argument { argument: "an id", .. }));
                let error = error.to_string();
                let named = format!("{id}, at {position}");
                assert!(error.contains(&named) && error.contains("less than 70"), "{error}");
            }
            let after = (cached.statistics(), cached.cache().slot_of().to_vec(), cached.heat().unwrap());
            assert_eq!(after, before);
        }
        let second = stage(&mut cached, &[3, 2], true).unwrap();
        assert_eq!(read(&cached, &first, &[1, 69]), [contents(1, 0, 16), contents(69, 0, 16)]);
        assert_eq!(read(&cached, &second, &[2, 3]), [contents(2, 0, 16), contents(3, 0, 16)]);
        cached.release(first, &stream).unwrap();
        cached.release(second, &stream).unwrap();
    }
}

#[test]
fn ids_behind_a_step_are_looked_at_and_not_noted() {
    for device in devices() {
        let mut cached = filled(&device, 9, 16, CacheOptions::default().slots(9));
        let stream = device.default_stream();
        let note = |cached: &mut CachedRows, ids: &[u32], part: Part| {
            let ids = Tensor::from_slice(&device, ids, [ids.len()]).unwrap();
            let noting = cached.note(&ids, part, &stream.record().unwrap())?;
            cached.stage_noted(noting)
        };
        let ids = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        for (part, position) in
            [(Part { first: 0, end: 2, checked: 9 }, 8), (Part { first: 5, end: 9, checked: 9 }, 8)]
        {
            let error = note(&mut cached, &ids, part).unwrap_err().to_string();
            assert!(error.contains(&format!("9, at {position}")), "{error}");
        }
        let step = note(&mut cached, &ids, Part { first: 3, end: 5, checked: 8 }).unwrap();
        cached.release(step, &stream).unwrap();
        let slots: Vec<_> = (0..9).filter(|&row| cached.cache().slot(row).is_some()).collect();
        assert_eq!((slots, cached.statistics().requests), (vec![4, 5], 2));
        assert_eq!(cached.heat().unwrap(), [0, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}

#[test]
fn notes_that_others_have_replaced_are_an_error() {
    let device = Device::emulator();
    let mut cached = filled(&device, 9, 16, CacheOptions::default().slots(9));
    let ids = Tensor::from_slice(&device, &[1u32, 2], [2]).unwrap();
    let after = device.default_stream().record().unwrap();
    let note = |cached: &mut CachedRows, first| {
        cached.note(&ids, Part { first, end: 1 + first, checked: 2 }, &after)
    };
    let (old, new) = (note(&mut cached, 0).unwrap(), note(&mut cached, 1).unwrap());
    assert!(cached.stage_noted(old).is_err());
    let step = cached.stage_noted(new).unwrap();
    cached.release(step, &device.default_stream()).unwrap();
    assert_eq!(cached.heat().unwrap(), [0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let forgotten = note(&mut cached, 0).unwrap();
    cached.reset();
    assert!(cached.stage_noted(forgotten).is_err());
}
