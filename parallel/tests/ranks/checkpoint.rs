//! Checkpoints: what any number of ranks saved, any number loads; a crash loses nothing; damage is found.

use std::path::Path;

use half::bf16;
use warpsmith::optim::{AdamW, AdamWOptions};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::checkpoint::{Checkpoint, Part, Saved};
use warpsmith_parallel::data::{Pass, Sharded};
use warpsmith_parallel::ranges::{block_range, even_range};
use warpsmith_parallel::{Communicator, Error, Failure, Result, launch};

use crate::support::{LIMIT, Random, vector};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("there is room")
}

/// A matrix whose elements are their own numbers.
fn matrix(rows: usize, columns: usize) -> Tensor<i64> {
    let numbers: Vec<i64> = (0..(rows * columns) as i64).collect();
    Tensor::from_slice(&Device::cpu(), &numbers, [rows, columns]).expect("it fits")
}

/// Saves a matrix that is split along its rows, one along its columns, and a vector that is not.
fn save(size: usize, folder: &Path, step: u64) -> Result<()> {
    launch::threads_within(LIMIT, size, |communicator| {
        let rank = communicator.rank();
        let mut checkpoint = Checkpoint::default();
        let range = block_range(5, size, rank);
        let part = matrix(5, 3).slice(0, range.clone())?;
        checkpoint.add_part("rows", &part, Part { axis: 0, range, total: 5 })?;
        let range = even_range(7, size, rank);
        let part = matrix(2, 7).slice(1, range.clone())?;
        checkpoint.add_part("columns", &part, Part { axis: 1, range, total: 7 })?;
        checkpoint.add("whole", &vector(&[bf16::from_f32(rank as f32 + 0.5)]))?;
        checkpoint.add("none", &Tensor::<f32>::zeros(&Device::cpu(), [0, 4])?)?;
        checkpoint.save(&communicator, folder, step)
    })
    .map(drop)
}

#[test]
fn any_number_of_ranks_loads_what_any_number_saved() -> Result<()> {
    let device = Device::cpu();
    for size in [1, 2, 3, 8] {
        let folder = folder();
        save(size, folder.path(), 7)?;
        let saved = Saved::latest(folder.path())?;
        assert_eq!((saved.step(), saved.size()), (7, size));
        assert_eq!(saved.tensor::<i64>("rows", &device)?.to_vec()?, matrix(5, 3).to_vec()?);
        assert_eq!(saved.tensor::<i64>("columns", &device)?.to_vec()?, matrix(2, 7).to_vec()?);
        assert_eq!(saved.tensor::<bf16>("whole", &device)?.to_vec()?, [bf16::from_f32(0.5)]);
        assert_eq!(saved.tensor::<f32>("none", &device)?.shape(), [0, 4]);
        for (name, whole) in [("rows", matrix(5, 3)), ("columns", matrix(2, 7))] {
            for axis in 0..2 {
                let total = whole.shape()[axis];
                for start in 0..=total {
                    for end in start..=total {
                        let part = saved.part::<i64>(name, axis, start..end, &device)?;
                        let expected = whole.slice(axis, start..end)?;
                        assert_eq!((part.shape(), part.to_vec()?), (expected.shape(), expected.to_vec()?));
                    }
                }
            }
        }
        let names: Vec<_> = saved.tensors().collect();
        assert_eq!(names[0], ("columns", &[2, 7][..]));
    }
    Ok(())
}

/// A model that is split, its optimiser, and the step that it is at.
struct Training {
    model: Sharded<f32>,
    optimizer: AdamW,
    step: u64,
}

impl Training {
    fn new(communicator: &Communicator) -> Result<Self> {
        let device = Device::cpu();
        let mut model = Sharded::new(communicator, &device)?;
        for (unit, shape) in [[3, 67], [1, 5]].iter().enumerate() {
            let numbers = Random(unit as u64).numbers(shape[0] * shape[1]);
            model.add(format!("unit{unit}"), &[&Tensor::from_slice(&device, &numbers, shape)?])?;
        }
        let options = AdamWOptions { learning_rate: 0.1, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(&device, options)?;
        model.add_to(&mut optimizer)?;
        Ok(Self { model, optimizer, step: 0 })
    }

    /// A step whose gradients are the same on all ranks, so that their number does not matter.
    fn train(&mut self) -> Result<()> {
        for unit in 0..self.model.count() {
            let mut gradient = self.model.gradients(unit)?.remove(0);
            // Eighths of whole numbers, whose mean over up to eight ranks is exact.
            let numbers = Random(10 * self.step + unit as u64).whole(gradient.len());
            gradient.write_slice(&numbers.iter().map(|number| number / 8.0).collect::<Vec<_>>())?;
            self.model.reduce(unit)?;
        }
        self.step += 1;
        self.model.step(&mut self.optimizer)
    }

    fn save(&self, communicator: &Communicator, folder: &Path) -> Result<()> {
        let mut checkpoint = Checkpoint::default();
        self.model.save_into(&mut checkpoint)?;
        checkpoint.add_optimizer("optimizer", &self.optimizer, |name| self.model.part(name))?;
        checkpoint.save(communicator, folder, self.step)
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        let saved = Saved::latest(folder)?;
        self.model.load_from(&saved)?;
        let model = &self.model;
        saved.load_optimizer("optimizer", &mut self.optimizer, |name| model.part(name))?;
        self.step = saved.step();
        Ok(())
    }

    fn bits(&mut self) -> Result<Vec<u32>> {
        let mut bits = Vec::new();
        for unit in 0..self.model.count() {
            let weights = self.model.weights(unit, Pass::Forward)?;
            bits.extend(weights[0].to_vec()?.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }
}

/// The bits after six steps without an interruption.
fn uninterrupted() -> Result<Vec<u32>> {
    let communicator = Communicator::local(1, LIMIT)?.remove(0);
    let mut training = Training::new(&communicator)?;
    for _ in 0..6 {
        training.train()?;
    }
    training.bits()
}

#[test]
fn training_goes_on_with_the_same_bits_on_another_number_of_ranks() -> Result<()> {
    let expected = uninterrupted()?;
    for (before, after) in [(1, 2), (2, 1), (2, 2), (4, 2), (2, 8), (8, 4)] {
        let folder = folder();
        launch::threads_within(LIMIT, before, |communicator| {
            let mut training = Training::new(&communicator)?;
            for _ in 0..3 {
                training.train()?;
            }
            training.save(&communicator, folder.path())
        })?;
        let results = launch::threads_within(LIMIT, after, |communicator| {
            let mut training = Training::new(&communicator)?;
            training.load(folder.path())?;
            assert_eq!(training.step, 3);
            for _ in 0..3 {
                training.train()?;
            }
            training.bits()
        })?;
        assert!(results.iter().all(|bits| *bits == expected), "{before} then {after}");
    }
    Ok(())
}

#[test]
fn a_rank_that_ends_while_all_save_loses_nothing() -> Result<()> {
    let folder = folder();
    let results = launch::all_threads(LIMIT, 4, |communicator| {
        let mut training = Training::new(&communicator)?;
        for step in 1..=5 {
            training.train()?;
            if step == 5 && communicator.rank() == 2 {
                // The others have begun to write.
                return Ok(());
            }
            if step == 3 || step == 5 {
                training.save(&communicator, folder.path())?;
            }
        }
        Ok(())
    })?;
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(()) => assert_eq!(rank, 2),
            Err(Error::Failure(Failure::Lost { rank: lost, .. })) => assert_eq!(lost, 2),
            Err(error) => panic!("{error}"),
        }
    }
    let results = launch::threads_within(LIMIT, 2, |communicator| {
        let mut training = Training::new(&communicator)?;
        training.load(folder.path())?;
        assert_eq!(training.step, 3);
        for _ in 3..6 {
            training.train()?;
            // The step that was not saved as a whole is saved now.
            training.save(&communicator, folder.path())?;
        }
        training.bits()
    })?;
    assert_eq!(results[0], uninterrupted()?);
    assert_eq!(Saved::latest(folder.path())?.step(), 6);
    Ok(())
}

#[test]
fn what_cannot_be_saved_is_an_error_on_all_ranks() -> Result<()> {
    let expect = |folder: &Path, of: &(dyn Fn(usize) -> Result<Checkpoint> + Sync), words: &str| {
        let results = launch::all_threads(LIMIT, 2, |communicator| {
            of(communicator.rank())?.save(&communicator, folder, 1)
        });
        for result in results.expect("there are ranks") {
            let error = result.expect_err("it cannot be saved").to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        }
    };
    let part = |range: std::ops::Range<usize>, total| -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        checkpoint.add_part("x", &vector(&vec![0u8; range.len()]), Part { axis: 0, range, total })?;
        Ok(checkpoint)
    };
    let folder = folder();
    expect(
        folder.path(),
        &|rank| part(4 * rank..4 * rank + 3, 7),
        "begins at 4 where the one before ends at 3",
    );
    expect(folder.path(), &|rank| part(rank..rank + 1, 3), "expected parts up to 3, they end at 2");
    expect(folder.path(), &|rank| part(rank..rank + 1, 2 + rank), "rank 1");
    assert!(Saved::latest(folder.path()).is_err());
    let file = folder.path().join("file");
    std::fs::write(&file, b"").expect("there is room");
    expect(&file, &|rank| part(rank..rank + 1, 2), "the file of rank 0");
    save(2, folder.path(), 1)?;
    expect(folder.path(), &|rank| part(rank..rank + 1, 2), "it has been");
    let mut checkpoint = part(0..1, 1)?;
    let error = checkpoint.add("x", &vector(&[0u8])).expect_err("it is there").to_string();
    assert!(error.contains("a name that no other tensor has"), "{error}");
    let wrong = Part { axis: 0, range: 0..2, total: 2 };
    let error = checkpoint.add_part("y", &vector(&[0u8]), wrong).expect_err("it has one").to_string();
    assert!(error.contains("2 of 2 indices along axis 0"), "{error}");
    Ok(())
}

#[test]
fn damage_and_other_models_are_found() -> Result<()> {
    let device = Device::cpu();
    let folder = folder();
    save(2, folder.path(), 1)?;
    let saved = Saved::latest(folder.path())?;
    let expect = |result: Result<()>, words: &str| {
        let error = result.expect_err("it does not fit").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    };
    expect(saved.tensor::<f32>("nothing", &device).map(drop), "there is none");
    expect(saved.tensor::<f32>("rows", &device).map(drop), "expected type F32, it is of I64");
    expect(saved.part::<i64>("rows", 0, 4..6, &device).map(drop), "`rows` has 5 of 4..6");
    expect(saved.part::<i64>("rows", 2, 0..1, &device).map(drop), "axis 2");
    let of_step = folder.path().join("step-0000000001");
    let shard = of_step.join("shard-00001-of-00002.safetensors");
    let whole = std::fs::read(&shard).expect("it is there");
    let mut damaged = whole.clone();
    *damaged.last_mut().expect("it has bytes") ^= 1;
    std::fs::write(&shard, &damaged).expect("there is room");
    expect(saved.tensor::<i64>("rows", &device).map(drop), "expected the bytes that were written");
    // What other files have is still there.
    assert_eq!(saved.part::<i64>("rows", 0, 0..3, &device)?.to_vec()?, matrix(3, 3).to_vec()?);
    std::fs::write(&shard, &whole[..whole.len() - 1]).expect("there is room");
    expect(saved.tensor::<i64>("rows", &device).map(drop), "bytes, it has");
    std::fs::remove_file(&shard).expect("it is there");
    expect(saved.tensor::<i64>("rows", &device).map(drop), "reading");
    let manifest = of_step.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).expect("it is there");
    for (from, to, words) in [
        ("\"format\": 1", "\"format\": 2", "expected 1, it is 2"),
        ("\"axis\": 1", "\"axis\": 9", "an axis 9"),
        ("\"start\": 0", "\"start\": 1", "one begins at"),
        ("{", "", "a manifest"),
    ] {
        std::fs::write(&manifest, text.replacen(from, to, 1)).expect("there is room");
        expect(Saved::latest(folder.path()).map(drop), words);
    }
    std::fs::write(folder.path().join("latest"), "../elsewhere").expect("there is room");
    expect(Saved::latest(folder.path()).map(drop), "the name of a step");
    Ok(())
}
