//! Experts in pinned host memory, measured by the share of them that is resident: the last part of `xtask bench --operation peer`.
//!
//! The limit is the link: the time that it takes for the rows that a step misses.

use anyhow::Result;
use comfy_table::{Table, presets};
use warpsmith_lab::benchmark::{self, Popularity, ResidencyMeasurement, ResidencyPoint};
use warpsmith_lab::cases::PeerSizes;

use super::rows::rounded;
use super::session::Session;
use super::{Args, microseconds};
use crate::measurement::Measurement;

/// Tokens of a step.
const TOKENS: usize = 2048;
/// Shares of the experts that are resident, in per cent.
const SHARES: [u32; 5] = [100, 90, 75, 50, 10];
/// How often experts are used: all alike, and as words are in texts.
const POPULARITIES: [Popularity; 2] = [Popularity::Uniform, Popularity::Zipf(1.0)];

/// A share, measured.
pub(super) struct Row {
    variant: String,
    measured: ResidencyMeasurement,
}

/// What is measured, in words.
fn variant(point: &ResidencyPoint) -> String {
    let popularity = match point.popularity {
        Popularity::Uniform => "uniform".into(),
        Popularity::Zipf(exponent) => format!("Zipf {exponent}"),
        other => format!("{other:?}"),
    };
    format!("pinned, {:.0} % resident, {popularity}", point.share * 100.0)
}

fn sizes() -> PeerSizes {
    PeerSizes::reference(TOKENS)
}

/// The shares and popularities that the arguments leave.
pub(super) fn points(args: &Args) -> Vec<ResidencyPoint> {
    wanted(args.filter.as_deref())
}

fn wanted(filter: Option<&str>) -> Vec<ResidencyPoint> {
    let of =
        |popularity| SHARES.map(|percent| ResidencyPoint { share: f64::from(percent) / 100.0, popularity });
    let name = |point: &ResidencyPoint| format!("peer residency T={TOKENS}, {}", variant(point));
    let mut points: Vec<_> = POPULARITIES.into_iter().flat_map(of).collect();
    points.retain(|point| filter.is_none_or(|filter| name(point).contains(filter)));
    points
}

/// Measures the points one after the other: the experts are written to host memory once for all of them.
pub(super) fn measure(session: &mut Session, points: &[ResidencyPoint]) -> Result<Vec<Row>> {
    if points.is_empty() {
        return Ok(Vec::new());
    }
    let name = |_: &()| format!("peer residency T={TOKENS}, {} points", points.len());
    let results = session.measure(&[()], name, |session, ()| {
        Ok(benchmark::residency(&session.device, &sizes(), points, &session.options)?)
    })?;
    let mut rows = Vec::new();
    for (point, result) in points.iter().zip(results.into_iter().flatten()) {
        let variant = variant(point);
        let result = result.map_err(|error| anyhow::Error::from(error).context(variant.clone()));
        rows.extend(session.counted(result).map(|measured| Row { variant, measured }));
    }
    Ok(rows)
}

impl Row {
    fn microseconds(&self) -> f64 {
        microseconds(&self.measured.timing)
    }

    /// Microseconds that the link takes for what it carries in a step.
    fn link(&self) -> f64 {
        self.measured.link_time().as_secs_f64() * 1e6
    }

    pub(super) fn measurement(&self, session: &Session) -> Measurement {
        self.filled(session.measurement("peer"))
    }

    fn filled(&self, row: Measurement) -> Measurement {
        let sizes = sizes();
        let row = Measurement {
            operation: "peer residency".into(),
            dtype: sizes.dtype.to_string(),
            shape: format!("T={}", sizes.tokens),
            variant: self.variant.clone(),
            kernel: self.measured.implementation.to_string(),
            share: Some(rounded(self.link() / self.microseconds(), 1e4)),
            bytes: Some(rounded(self.measured.missed, 1.0)),
            hit_rate: Some(rounded(self.measured.hit_rate, 1e4)),
            ..row
        };
        row.timed(self.microseconds())
    }
}

pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "experts",
        "µs / step",
        "tokens/s",
        "hits",
        "MB missed",
        "link GB/s",
        "link µs",
        "of the link",
        "ran",
    ]);
    for row in rows {
        let (time, link, measured) = (row.microseconds(), row.link(), &row.measured);
        table.add_row([
            row.variant.clone(),
            format!("{time:.1}"),
            format!("{:.0}", TOKENS as f64 / time * 1e6),
            format!("{:.1} %", measured.hit_rate * 100.0),
            format!("{:.1}", measured.missed * 1e-6),
            format!("{:.1}", measured.link * 1e-9),
            format!("{link:.1}"),
            format!("{:.0} %", link / time * 100.0),
            measured.implementation.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warpsmith::Device;
    use warpsmith_lab::benchmark::{self, Options, Popularity, ResidencyPoint};
    use warpsmith_lab::cases::PeerSizes;

    use super::{Row, table, variant, wanted};
    use crate::measurement::Measurement;

    #[test]
    fn a_filter_leaves_shares_or_popularities() {
        assert_eq!(wanted(None).len(), 10);
        assert_eq!(wanted(Some("peer residency")).len(), 10);
        assert_eq!(wanted(Some("50 % resident")).len(), 2);
        assert_eq!(wanted(Some("Zipf")).len(), 5);
        assert_eq!(wanted(Some("peer int8")), []);
        assert!(wanted(None).iter().all(|point| point.share > 0.0 && point.share <= 1.0));
    }

    #[test]
    fn a_row_says_what_the_link_takes_for_what_is_missed() {
        let mut sizes = PeerSizes { sub_keys: 8, ..PeerSizes::reference(2) };
        (sizes.input, sizes.output) = (16, 16);
        let mut options = Options::default();
        (options.warm_up, options.samples) = (Duration::ZERO, 1);
        let point = ResidencyPoint { share: 0.5, popularity: Popularity::Zipf(1.0) };
        let measured = benchmark::residency(&Device::cpu(), &sizes, &[point], &options);
        let mut measured = measured.expect("the sizes fit").remove(0).expect("the cache fits");
        (measured.timing.median, measured.hit_rate) = (Duration::from_micros(2000), 0.75);
        (measured.missed, measured.link) = (50e6, 50e9);
        let rows = [Row { variant: variant(&point), measured }];
        let row = rows[0].filled(Measurement::default());
        assert_eq!((row.operation.as_str(), row.shape.as_str()), ("peer residency", "T=2048"));
        assert_eq!(row.variant, "pinned, 50 % resident, Zipf 1");
        assert_eq!((row.median_us, row.bytes, row.share), (2000.0, Some(50e6), Some(0.5)));
        assert_eq!(row.hit_rate, Some(0.75));
        let text = table(&rows).to_string();
        assert!(text.contains("1024000") && text.contains("75.0 %") && text.contains("1000.0"), "{text}");
    }
}
