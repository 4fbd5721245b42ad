//! How long a schedule takes, and what it keeps.

use std::collections::HashMap;

use super::schedule::{Action, Place};
use crate::error::{Result, argument};

/// How long a chunk's passes take on every stage, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The forward pass.
    pub forward: u64,
    /// The gradient of the input.
    pub backward_input: u64,
    /// The gradients of the weights.
    pub backward_weight: u64,
    /// A transfer of a pass's result to the next stage. A stage's activations follow each other on one link, and its gradients
    /// on another.
    pub send: u64,
}

impl Default for Costs {
    /// All passes take as long, and sending takes no time.
    fn default() -> Self {
        Self { forward: 1, backward_input: 1, backward_weight: 1, send: 0 }
    }
}

/// What came of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Simulation {
    /// From the start of the first pass to the end of the last one.
    pub duration: u64,
    /// How long each stage works.
    pub work: Vec<u64>,
    /// How many microbatches, of a chunk each, every stage keeps at most: from the forward pass to the gradients of the weights.
    pub kept: Vec<usize>,
}

impl Simulation {
    /// The time in which the busiest stage does nothing, over that in which it works. 0 where nothing is to be done.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        match self.work.iter().max() {
            Some(&work) if work > 0 => (self.duration - work) as f64 / work as f64,
            _ => 0.0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Forward,
    /// Both gradients, or that of the input.
    Input,
    Weight,
}

/// A pass of one of all chunks, in the order of the layers.
type Done = (Kind, usize, usize);

/// When a pass ends, and when the stage that waits for its result has it.
#[derive(Clone, Copy)]
struct End {
    here: u64,
    there: u64,
}

/// What an action is, how long it takes, and how many more microbatches a stage keeps after it.
fn parts(action: Action, costs: Costs) -> (Kind, Place, u64, isize) {
    match action {
        Action::Forward(place) => (Kind::Forward, place, costs.forward, 1),
        Action::Backward(place) => {
            (Kind::Input, place, costs.backward_input.saturating_add(costs.backward_weight), -1)
        }
        Action::BackwardInput(place) => (Kind::Input, place, costs.backward_input, 0),
        Action::BackwardWeight(place) => (Kind::Weight, place, costs.backward_weight, -1),
    }
}

/// Runs the actions of all stages, each as soon as what it needs is there.
///
/// # Errors
///
/// [`Error::Argument`](crate::Error::Argument) if stages wait for each other for ever.
pub fn simulate(actions: &[Vec<Action>], chunks: usize, costs: Costs) -> Result<Simulation> {
    let stages = actions.len();
    let mut ends: HashMap<Done, End> = HashMap::new();
    // When each stage's links are free: that for activations, and that for gradients.
    let mut links = vec![[0u64; 2]; stages];
    let mut next = vec![0; stages];
    let mut times = vec![0; stages];
    let (mut work, mut kept) = (vec![0u64; stages], vec![0; stages]);
    let mut now_kept = vec![0usize; stages];
    loop {
        let mut has_moved = false;
        for stage in 0..stages {
            while let Some(&action) = actions[stage].get(next[stage]) {
                let (kind, place, cost, more) = parts(action, costs);
                let layer = place.chunk.saturating_mul(stages).saturating_add(stage);
                let layers = stages.saturating_mul(chunks);
                let Some(start) = ready(&ends, kind, [place.microbatch, layer], layers) else {
                    break;
                };
                let here = start.max(times[stage]).saturating_add(cost);
                times[stage] = here;
                // The last layer's results and the gradient of the first one's input go nowhere.
                let sends = match kind {
                    Kind::Forward => layer.saturating_add(1) < layers,
                    Kind::Input => layer > 0,
                    Kind::Weight => false,
                };
                let mut there = here;
                if sends {
                    let link = &mut links[stage][usize::from(kind != Kind::Forward)];
                    there = here.max(*link).saturating_add(costs.send);
                    *link = there;
                }
                ends.insert((kind, place.microbatch, layer), End { here, there });
                work[stage] = work[stage].saturating_add(cost);
                now_kept[stage] = now_kept[stage].saturating_add_signed(more);
                kept[stage] = kept[stage].max(now_kept[stage]);
                next[stage] += 1;
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    if let Some(stage) = (0..stages).find(|&stage| next[stage] < actions[stage].len()) {
        let actual = format!("stage {stage} waits for ever in its action {}", next[stage]);
        return Err(argument("simulate", "actions", "an order in which all can be done", actual));
    }
    Ok(Simulation { duration: times.into_iter().max().unwrap_or(0), work, kept })
}

/// When a pass can start; `None` if what it needs has not been done.
fn ready(
    ends: &HashMap<Done, End>,
    kind: Kind,
    [microbatch, layer]: [usize; 2],
    layers: usize,
) -> Option<u64> {
    let end = |kind, layer| ends.get(&(kind, microbatch, layer)).copied();
    let own = |kind| end(kind, layer).map(|end| end.here);
    match kind {
        Kind::Forward if layer == 0 => Some(0),
        Kind::Forward => Some(end(Kind::Forward, layer - 1)?.there),
        Kind::Input if layer.checked_add(1) == Some(layers) => own(Kind::Forward),
        Kind::Input => Some(end(Kind::Input, layer.saturating_add(1))?.there.max(own(Kind::Forward)?)),
        Kind::Weight => own(Kind::Input),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Action, Costs, Place, Simulation, simulate};
    use crate::pipeline::Schedule;

    /// Checks that each pass is done once, and runs the schedule.
    fn simulated(schedule: Schedule, stages: usize, microbatches: usize) -> Simulation {
        simulated_with(schedule, [stages, microbatches], Costs::default())
    }

    fn simulated_with(schedule: Schedule, [stages, microbatches]: [usize; 2], costs: Costs) -> Simulation {
        let actions = schedule.all(stages, microbatches).expect("the sizes fit");
        for of_stage in &actions {
            let mut counts: BTreeMap<Place, [usize; 3]> = BTreeMap::new();
            for &action in of_stage {
                let (kinds, place) = match action {
                    Action::Forward(place) => (&[0][..], place),
                    Action::Backward(place) => (&[1, 2][..], place),
                    Action::BackwardInput(place) => (&[1][..], place),
                    Action::BackwardWeight(place) => (&[2][..], place),
                };
                kinds.iter().for_each(|&kind: &usize| counts.entry(place).or_default()[kind] += 1);
            }
            assert_eq!(counts.len(), microbatches * schedule.chunks());
            assert!(counts.values().all(|count| *count == [1; 3]));
        }
        simulate(&actions, schedule.chunks(), costs).expect("no stage waits for ever")
    }

    #[test]
    fn one_forward_one_backward_has_its_bubble_and_keeps_what_it_says() {
        for stages in 1..=8 {
            for microbatches in 1..=32 {
                let found = simulated(Schedule::OneForwardOneBackward, stages, microbatches);
                assert_eq!(found.duration, 3 * (microbatches + stages - 1) as u64);
                let bubble = (stages - 1) as f64 / microbatches as f64;
                assert!((found.bubble() - bubble).abs() < 1e-12);
                for (stage, &kept) in found.kept.iter().enumerate() {
                    assert_eq!(kept, microbatches.min(stages - stage), "stage {stage} of {stages}");
                }
            }
        }
    }

    #[test]
    fn interleaved_stages_divide_the_bubble_by_their_chunks() {
        for stages in 1..=8 {
            for chunks in 1..=4 {
                for microbatches in (stages..=32).step_by(stages) {
                    let found = simulated(Schedule::Interleaved { chunks }, stages, microbatches);
                    let work = 3 * (microbatches * chunks) as u64;
                    assert_eq!(
                        found.duration,
                        work + 3 * (stages as u64 - 1),
                        "{stages} {chunks} {microbatches}"
                    );
                    let bubble = (stages - 1) as f64 / (chunks * microbatches) as f64;
                    assert!((found.bubble() - bubble).abs() < 1e-12);
                    for (stage, &kept) in found.kept.iter().enumerate() {
                        let ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages;
                        assert_eq!(kept, (ahead + 1).min(microbatches * chunks));
                    }
                }
            }
        }
    }

    #[test]
    fn zero_bubble_has_a_third_of_the_bubble_and_keeps_no_more_than_the_first_stage_did() {
        for stages in 1..=8 {
            for microbatches in 1..=32 {
                let found = simulated(Schedule::ZeroBubble, stages, microbatches);
                let before = simulated(Schedule::OneForwardOneBackward, stages, microbatches);
                assert!(found.duration <= before.duration);
                if microbatches >= stages {
                    assert_eq!(found.duration, (3 * microbatches + stages - 1) as u64);
                    assert!((3.0 * found.bubble() - before.bubble()).abs() < 1e-12);
                }
                assert!(found.kept.iter().all(|&kept| kept <= microbatches.min(stages)), "{:?}", found.kept);
            }
        }
    }

    /// Passes of ten units each, and transfers of so many.
    fn transfers_of(send: u64) -> Costs {
        Costs { forward: 10, backward_input: 10, backward_weight: 10, send }
    }

    #[test]
    fn eager_turns_wait_for_transfers_only_while_the_pipeline_fills_and_drains() {
        for stages in 1..=8 {
            for microbatches in 1..=32 {
                for send in [0, 1, 7, 15] {
                    let schedule = Schedule::EagerOneForwardOneBackward;
                    let found = simulated_with(schedule, [stages, microbatches], transfers_of(send));
                    let (p, m) = (stages as u64, microbatches as u64);
                    assert_eq!(found.duration, 30 * (m + p - 1) + 2 * (p - 1) * send, "{p} {m} {send}");
                    for (stage, &kept) in found.kept.iter().enumerate() {
                        assert_eq!(kept, microbatches.min(2 * (stages - 1 - stage) + 1), "{p} {m} {send}");
                    }
                }
            }
        }
    }

    #[test]
    fn eager_zero_bubble_waits_for_transfers_only_while_the_pipeline_fills() {
        for stages in 1..=8 {
            for microbatches in 1..=32 {
                for send in [0, 1, 7, 10] {
                    let sizes = [stages, microbatches];
                    let found = simulated_with(Schedule::EagerZeroBubble, sizes, transfers_of(send));
                    let (p, m) = (stages as u64, microbatches as u64);
                    if m >= 2 * p - 1 {
                        assert_eq!(found.duration, 30 * m + (p - 1) * (10 + send), "{p} {m} {send}");
                    }
                    let turns =
                        simulated_with(Schedule::EagerOneForwardOneBackward, sizes, transfers_of(send));
                    assert!(found.duration <= turns.duration, "{p} {m} {send}");
                    let most = microbatches.min(2 * stages - 1);
                    assert!(found.kept.iter().all(|&kept| kept <= most), "{:?}", found.kept);
                }
            }
        }
    }

    /// Without one more microbatch under way, each waits for a transfer: two stages and two microbatches go round in both
    /// passes of both stages and two transfers.
    #[test]
    fn other_schedules_wait_for_a_transfer_in_each_microbatch() {
        for microbatches in [8, 16, 32] {
            for send in [4, 7, 10] {
                let duration =
                    |schedule| simulated_with(schedule, [2, microbatches], transfers_of(send)).duration;
                let eager = duration(Schedule::EagerOneForwardOneBackward);
                let stall = duration(Schedule::OneForwardOneBackward) - eager;
                // All but those that fill and drain the pipeline.
                assert_eq!(stall, (microbatches as u64 - 2) * send);
                // Passes of weights fill some of the time.
                assert!(duration(Schedule::ZeroBubble) > duration(Schedule::EagerZeroBubble));
            }
        }
    }

    #[test]
    fn results_follow_each_other_on_a_link() {
        // A link that is slower than the passes decides: the last of 8 results arrives after 8 transfers.
        let forward = |microbatch| Action::Forward(Place { microbatch, chunk: 0 });
        let actions = [(0..8).map(forward).collect(), (0..8).map(forward).collect()];
        let found = simulate(&actions, 1, Costs { send: 5, ..Costs::default() }).expect("it can be done");
        assert_eq!(found.duration, 1 + 8 * 5 + 1);
    }

    #[test]
    fn results_of_all_chunks_of_a_stage_share_its_link() {
        let of_chunk = |chunk| (0..3).map(move |microbatch| Action::Forward(Place { microbatch, chunk }));
        let of_stage: Vec<_> = (0..2).flat_map(of_chunk).collect();
        let actions = [of_stage.clone(), of_stage];
        let found = simulate(&actions, 2, Costs { send: 5, ..Costs::default() }).expect("it can be done");
        // Stage 0 sends its first chunk's results until 6, 11 and 16, stage 1 sends its own until 12, 17 and 22. The second chunk's first
        // result is there at 13, and waits for the link until 16: the three of them arrive at 21, 26 and 31.
        assert_eq!(found.duration, 31 + 1);
    }

    #[test]
    fn interleaved_stages_take_as_long_as_their_busiest_link() {
        for stages in 2..=6 {
            for chunks in 1..=3 {
                for microbatches in (stages..=24).step_by(stages) {
                    let send = 1000;
                    let costs = transfers_of(send);
                    let found =
                        simulated_with(Schedule::Interleaved { chunks }, [stages, microbatches], costs);
                    // All stages but the last one send each chunk's results, one after the other.
                    let busiest = (microbatches * chunks) as u64 * send;
                    assert!(found.duration >= costs.forward + busiest, "{stages} {chunks} {microbatches}");
                }
            }
        }
    }

    #[test]
    fn no_schedule_stops_where_sending_and_passes_take_any_time() {
        for costs in [[1, 2, 1, 3], [5, 1, 7, 2], [1, 1, 1, 50]] {
            let [forward, backward_input, backward_weight, send] = costs;
            let costs = Costs { forward, backward_input, backward_weight, send };
            for stages in 1..=8 {
                for microbatches in (stages..=32).step_by(stages) {
                    for schedule in [
                        Schedule::OneForwardOneBackward,
                        Schedule::ZeroBubble,
                        Schedule::EagerOneForwardOneBackward,
                        Schedule::EagerZeroBubble,
                        Schedule::Interleaved { chunks: 3 },
                    ] {
                        let actions = schedule.all(stages, microbatches).expect("the sizes fit");
                        simulate(&actions, schedule.chunks(), costs).expect("no stage waits for ever");
                    }
                }
            }
        }
    }

    #[test]
    fn stages_that_wait_for_each_other_are_found() {
        let place = Place { microbatch: 0, chunk: 0 };
        let actions = [vec![Action::BackwardInput(place), Action::Forward(place)]];
        let error = simulate(&actions, 1, Costs::default()).expect_err("it cannot be done").to_string();
        assert!(error.contains("stage 0 waits for ever in its action 0"), "{error}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for (schedule, at, microbatches, words) in [
            (Schedule::ZeroBubble, [2, 2], 1, "stage is 2, expected below 2"),
            (Schedule::Interleaved { chunks: 0 }, [0, 2], 2, "chunks is 0"),
            (Schedule::Interleaved { chunks: 2 }, [0, 2], 3, "a multiple of 2"),
        ] {
            let error = schedule.actions(at, microbatches).expect_err("it does not fit").to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(Schedule::ZeroBubble.all(3, 0).expect("nothing is to be done").iter().all(Vec::is_empty));
    }
}
