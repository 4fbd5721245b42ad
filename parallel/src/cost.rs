//! What collectives and steps cost: a model of few numbers, which are fitted to measured times.
//!
//! A [`Model`] has a [`Line`] for each [`Collective`] and scales it to other numbers of ranks as a ring's steps and bytes do. A
//! [`Step`] says between which two times a step of training is.

use crate::error::{Result, argument};

const OPERATION: &str = "cost";

/// What is measured, by bytes a rank: those that a rank reduces, gives to the others, gets of a sum, or sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Collective {
    /// Sums that all ranks get.
    AllReduce,
    /// The inputs of all ranks, which all ranks get.
    AllGather,
    /// Sums of which each rank gets a part.
    ReduceScatter,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AllReduce, Self::AllGather, Self::ReduceScatter];

    /// Its name, which is that of the communicator's operation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
        }
    }

    /// The steps of a ring of `ranks` ranks, and what goes over each of its links, over the bytes of a rank.
    fn ring(self, ranks: usize) -> [f64; 2] {
        let others = ranks.saturating_sub(1) as f64;
        match self {
            Self::AllReduce => [2.0 * others, 2.0 * others / ranks.max(1) as f64],
            Self::AllGather | Self::ReduceScatter => [others, others],
        }
    }
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes of a rank.
    pub bytes: f64,
    /// In seconds, above 0.
    pub seconds: f64,
}

/// A time by bytes: a latency and a bandwidth, but never less than what a call takes to be enqueued and started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// The least time, in seconds.
    pub least: f64,
    /// The time that is left without bytes, in seconds.
    pub latency: f64,
    /// Seconds a byte: one over the bandwidth.
    pub per_byte: f64,
}

impl Line {
    /// The line with the least largest relative error, among those that follow from how many of the smallest points are the
    /// least time. Latency and bandwidth are fitted to the others with relative errors that are small by their squares.
    ///
    /// A time above that of more bytes counts as the latter: the call was held up, since its bytes cannot be the reason.
    ///
    /// ```
    /// use warpsmith_parallel::cost::{Line, Point};
    ///
    /// let points: Vec<_> = [1e3, 1e6, 1e8, 1e9].map(|bytes| Point { bytes, seconds: 2e-5f64.max(1e-5 + bytes / 1e11) }).into();
    /// let line = Line::fit(&points)?;
    /// assert!((line.seconds(1e7) / 1.1e-4 - 1.0).abs() < 1e-9);
    /// assert!(line.largest_error(&points) < 1e-9);
    /// # Ok::<(), warpsmith_parallel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there are fewer than two sizes, or a time or a size is none.
    pub fn fit(points: &[Point]) -> Result<Self> {
        let is_one = |point: &&Point| {
            let Point { bytes, seconds } = **point;
            bytes >= 0.0 && bytes.is_finite() && seconds > 0.0 && seconds.is_finite()
        };
        if let Some(point) = points.iter().find(|point| !is_one(point)) {
            let expected = "sizes from 0 bytes on, and times above 0";
            return Err(argument(OPERATION, "points", expected, format!("{point:?}")));
        }
        let points = undisturbed(points);
        let lines = (0..points.len()).filter_map(|count| {
            let (small, large) = points.split_at(count);
            let (latency, per_byte) = straight(large)?;
            let line = Self { least: least(small), latency, per_byte };
            Some((line.largest_error(&points), line))
        });
        let best = lines.min_by(|one, other| one.0.total_cmp(&other.0));
        let best = best.ok_or_else(|| argument(OPERATION, "points", "two sizes or more", points.len()))?;
        Ok(best.1)
    }

    /// The time of so many bytes, in seconds.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.least.max(self.latency + bytes * self.per_byte)
    }

    /// How far the line is from points at most, over their times. Times above those of more bytes count as in [`Line::fit`].
    #[must_use]
    pub fn largest_error(&self, points: &[Point]) -> f64 {
        let points = undisturbed(points);
        let errors = points.iter().map(|point| (self.seconds(point.bytes) / point.seconds - 1.0).abs());
        errors.fold(0.0, f64::max)
    }
}

/// The points by their bytes, each with the shortest time of as many bytes or more.
fn undisturbed(points: &[Point]) -> Vec<Point> {
    let mut points = points.to_vec();
    // Of as many bytes the shortest time last, so that the others become that.
    points
        .sort_by(|one, other| one.bytes.total_cmp(&other.bytes).then(other.seconds.total_cmp(&one.seconds)));
    let mut shortest = f64::INFINITY;
    for point in points.iter_mut().rev() {
        shortest = shortest.min(point.seconds);
        point.seconds = shortest;
    }
    points
}

/// The time with the least sum of squares of relative errors; 0 of no points.
fn least(points: &[Point]) -> f64 {
    let sum = |power: i32| points.iter().map(|point| point.seconds.powi(power)).sum::<f64>();
    if points.is_empty() { 0.0 } else { sum(-1) / sum(-2) }
}

/// Latency and seconds a byte with the least sum of squares of relative errors, neither below 0. `None` of a single size.
fn straight(points: &[Point]) -> Option<(f64, f64)> {
    if points.iter().all(|point| point.bytes == points[0].bytes) {
        return None;
    }
    // Times over their own size are 1, so that errors are relative.
    let sum = |term: fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|point| term(1.0 / point.seconds, point.bytes / point.seconds)).sum()
    };
    let (ones, mixed, bytes) =
        (sum(|one, _| one * one), sum(|one, byte| one * byte), sum(|_, byte| byte * byte));
    let (of_one, of_byte) = (sum(|one, _| one), sum(|_, byte| byte));
    let determinant = ones * bytes - mixed * mixed;
    let latency = (of_one * bytes - of_byte * mixed) / determinant;
    let per_byte = (ones * of_byte - mixed * of_one) / determinant;
    // Of sizes that are nearly equal nothing may be left of the determinant.
    if !(latency.is_finite() && per_byte.is_finite()) {
        return None;
    }
    match (latency >= 0.0, per_byte >= 0.0) {
        (true, true) => Some((latency, per_byte)),
        (false, _) => Some((0.0, of_byte / bytes)),
        (true, false) => Some((of_one / ones, 0.0)),
    }
}

/// Lines of the collectives, as measured with some number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    ranks: usize,
    lines: [Line; Collective::ALL.len()],
}

impl Model {
    /// The model of points that were measured with `ranks` ranks; `points` gives those of each collective.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there are fewer than two ranks; otherwise as [`Line::fit`].
    pub fn fit(ranks: usize, mut points: impl FnMut(Collective) -> Vec<Point>) -> Result<Self> {
        if ranks < 2 {
            return Err(argument(OPERATION, "ranks", "at least 2", ranks));
        }
        let mut lines = [Line::default(); Collective::ALL.len()];
        for (line, collective) in lines.iter_mut().zip(Collective::ALL) {
            *line = Line::fit(&points(collective))?;
        }
        Ok(Self { ranks, lines })
    }

    /// How many ranks were measured.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The line for `ranks` ranks: that of the measured ones, whose latency grows as a ring's steps do, and whose bytes as those of
    /// its links. That is an extrapolation where there are other ranks than were measured: all links are taken to be as fast.
    #[must_use]
    pub fn line(&self, collective: Collective, ranks: usize) -> Line {
        let line = self.lines[collective as usize];
        let ([steps, bytes], [of_steps, of_bytes]) = (collective.ring(ranks), collective.ring(self.ranks));
        if ranks < 2 {
            return Line::default();
        }
        Line {
            least: line.least,
            latency: line.latency * steps / of_steps,
            per_byte: line.per_byte * bytes / of_bytes,
        }
    }
}

/// A step of training on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step<'a> {
    /// The time without any call, in seconds.
    pub work: f64,
    /// How much of it may run beside calls, in seconds.
    pub beside: f64,
    /// The calls, with their bytes of a rank. Nothing runs beside the last of them.
    pub calls: &'a [(Collective, f64)],
}

impl Step<'_> {
    /// Between which times the step is on `ranks` ranks, in seconds: with all calls hidden that may be, and with none.
    ///
    /// ```
    /// use warpsmith_parallel::cost::{Collective, Model, Point, Step};
    ///
    /// // 10 µs and 1 GB/s on two ranks.
    /// let points = |_| [1e3, 1e6, 1e9].map(|bytes| Point { bytes, seconds: 1e-5 + bytes / 1e9 }).to_vec();
    /// let model = Model::fit(2, points)?;
    /// let calls = [(Collective::AllReduce, 1e6); 2];
    /// let [hidden, whole] = Step { work: 0.1, beside: 0.05, calls: &calls }.bounds(&model, 2);
    /// assert!((hidden - 0.10101).abs() < 1e-9 && (whole - 0.10202).abs() < 1e-9);
    /// # Ok::<(), warpsmith_parallel::Error>(())
    /// ```
    #[must_use]
    pub fn bounds(&self, model: &Model, ranks: usize) -> [f64; 2] {
        let time = |&(collective, bytes): &(Collective, f64)| model.line(collective, ranks).seconds(bytes);
        let all: f64 = self.calls.iter().map(time).sum();
        let last = self.calls.last().map_or(0.0, time);
        [self.work + last.max(all - self.beside), self.work + all]
    }
}

#[cfg(test)]
mod tests {
    use super::{Collective, Line, Model, Point, Step};

    fn points(least: f64, latency: f64, bandwidth: f64) -> Vec<Point> {
        let time = |bytes: f64| least.max(latency + bytes / bandwidth);
        (10..30)
            .map(|bits| f64::from(1u32 << bits))
            .map(|bytes| Point { bytes, seconds: time(bytes) })
            .collect()
    }

    #[test]
    fn a_line_is_found_again_from_its_points() {
        for (least, latency, bandwidth) in [(0.0, 1e-5, 1e11), (9e-5, 5e-5, 3e11), (1e-4, 0.0, 2e10)] {
            let points = points(least, latency, bandwidth);
            let line = Line::fit(&points).expect("there are points");
            assert!(line.largest_error(&points) < 1e-9, "{line:?}");
            assert!((line.per_byte * bandwidth - 1.0).abs() < 1e-9, "{line:?}");
            assert!((line.latency - latency).abs() < 1e-12, "{line:?}");
        }
    }

    #[test]
    fn calls_that_were_held_up_count_as_those_of_more_bytes() {
        let quiet = points(9e-5, 5e-5, 3e11);
        let mut noisy = quiet.clone();
        for point in noisy.iter_mut().take(9).step_by(2) {
            point.seconds *= 1.5;
        }
        let line = Line::fit(&noisy).expect("there are points");
        assert_eq!(line, Line::fit(&quiet).expect("there are points"));
        assert!(line.largest_error(&noisy) < 1e-9, "{line:?}");
        // The order of the points says nothing, of as many bytes neither.
        let mut twice = [noisy.clone(), quiet.clone()].concat();
        let other = [quiet.clone(), noisy.clone()].concat();
        let [one, other] = [&twice, &other].map(|points| Line::fit(points).expect("there are points"));
        assert_eq!(one, other);
        twice.reverse();
        assert!(line.largest_error(&twice) < 1e-9, "{line:?}");
        // A time that is too short is no noise.
        noisy[3].seconds = 4.5e-5;
        let line = Line::fit(&noisy).expect("there are points");
        assert!(line.largest_error(&noisy) > 0.3, "{line:?}");
    }

    #[test]
    fn neither_latency_nor_bandwidth_is_below_zero() {
        let of = |times: [f64; 3]| {
            let sizes = [1e6, 2e6, 3e6];
            let points: Vec<_> =
                sizes.into_iter().zip(times).map(|(bytes, seconds)| Point { bytes, seconds }).collect();
            Line::fit(&points).expect("there are points")
        };
        for times in [[1.0, 3.0, 6.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]] {
            let line = of(times);
            assert!(line.latency >= 0.0 && line.per_byte >= 0.0 && line.least >= 0.0, "{line:?}");
        }
    }

    #[test]
    fn points_that_say_nothing_are_refused() {
        let point = |bytes, seconds| Point { bytes, seconds };
        for (points, words) in [
            (vec![], "two sizes"),
            (vec![point(1.0, 1.0)], "two sizes"),
            (vec![point(1.0, 1.0); 3], "two sizes"),
            (vec![point(1.0, 0.0), point(2.0, 1.0)], "times above 0"),
            (vec![point(-1.0, 1.0), point(2.0, 1.0)], "sizes from 0"),
            (vec![point(1.0, f64::NAN), point(2.0, 1.0)], "times above 0"),
        ] {
            let error = Line::fit(&points).expect_err("it is no line").to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        }
        assert!(Model::fit(1, |_| points(0.0, 1e-5, 1e9)).is_err());
    }

    #[test]
    fn more_ranks_take_the_steps_and_bytes_of_a_ring() {
        let model = Model::fit(2, |_| points(0.0, 1e-5, 1e9)).expect("there are points");
        for ranks in [2usize, 4, 8, 64] {
            let (p, n) = (ranks as f64, 1e8);
            let time = |collective| model.line(collective, ranks).seconds(n);
            let reduce = 1e-5 * (p - 1.0) + 2.0 * (p - 1.0) / p * n / 1e9;
            assert!((time(Collective::AllReduce) / reduce - 1.0).abs() < 1e-9, "{ranks}");
            let gather = (p - 1.0) * (1e-5 + n / 1e9);
            assert!((time(Collective::AllGather) / gather - 1.0).abs() < 1e-9, "{ranks}");
        }
        assert_eq!(model.line(Collective::AllReduce, 1), Line::default());
    }

    #[test]
    fn a_step_is_between_all_hidden_and_nothing_hidden() {
        let model = Model::fit(2, |_| points(0.0, 1e-5, 1e9)).expect("there are points");
        let calls = [(Collective::AllReduce, 1e6); 4];
        let step = |beside| Step { work: 0.1, beside, calls: &calls };
        let each = 1e-5 + 1e-3;
        for (beside, hidden) in [(0.0, 4.0 * each), (each, 3.0 * each), (1.0, each)] {
            let [least, most] = step(beside).bounds(&model, 2);
            assert!((least - 0.1 - hidden).abs() < 1e-9 && (most - 0.1 - 4.0 * each).abs() < 1e-9);
        }
        assert_eq!(Step { work: 0.1, beside: 0.0, calls: &[] }.bounds(&model, 8), [0.1, 0.1]);
    }
}
