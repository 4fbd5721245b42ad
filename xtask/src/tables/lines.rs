//! PEER layers as plots: lines over the number of tokens, and over the share of experts that is resident.

use anyhow::Result;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::peer::{LAYER, PLAIN, RESIDENCY, distinct, rate, resident, tokens};
use super::plots::{FONT, failure, legend, svg};
use crate::measurement::Measurement;

/// The lines' colours in turn, which the colour-blind can tell apart.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
const SIZE: (u32, u32) = (860, 440);

/// Points that belong together.
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// A layer's time over the number of tokens: ours, each peer's, and what the gather allows, each use counted.
pub(super) fn layers(rows: &[Measurement]) -> Result<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.operation == LAYER && row.variant == PLAIN).collect();
    let line = |label: &str, of: &dyn Fn(&Measurement) -> Option<f64>| -> Result<Line> {
        let mut points = Vec::new();
        for row in &rows {
            let Some(time) = of(row) else { continue };
            let point = (tokens(row)? as f64, time);
            if !points.contains(&point) {
                points.push(point);
            }
        }
        Ok(Line { label: label.into(), points })
    };
    let mut lines = vec![line("warpsmith", &|row| Some(row.median_us))?];
    let named = rows.iter().filter(|row| row.peer_us.is_some());
    for peer in distinct(named.map(|row| Ok(row.peer.as_str())))? {
        lines.push(line(peer, &|row| row.peer_us.filter(|_| row.peer == peer))?);
    }
    lines.push(line("the gather's limit", &|row| Some(row.share? * row.median_us))?);
    let (x, y) = (range(&lines, |point| point.0), range(&lines, |point| point.1));
    svg(SIZE, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(x.log_scale(), y.log_scale())
            .map_err(failure)?;
        draw(&mut chart, ["tokens", "µs"], &lines)?;
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
}

/// Tokens a second over the share of experts that is resident, a line for each way to use them.
pub(super) fn residency(rows: &[Measurement]) -> Result<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.operation == RESIDENCY).collect();
    let mut lines: Vec<Line> = Vec::new();
    for popularity in distinct(rows.iter().map(|row| Ok(resident(row)?.1)))? {
        let mut points = Vec::new();
        for row in &rows {
            let (share, own) = resident(row)?;
            if own == popularity {
                points.push((share, rate(tokens(row)?, row.median_us)));
            }
        }
        lines.push(Line { label: popularity.into(), points });
    }
    let y = range(&lines, |point| point.1);
    svg(SIZE, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..105.0, y.log_scale())
            .map_err(failure)?;
        draw(&mut chart, ["% of the experts are resident", "10³ tokens/s"], &lines)?;
        legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
}

/// What an axis spans that has a logarithmic scale.
fn range(lines: &[Line], value: fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
    let values = lines.iter().flat_map(|line| &line.points).map(value).filter(|value| *value > 0.0);
    let (least, most) =
        values.fold((f64::INFINITY, 0f64), |(least, most), value| (least.min(value), most.max(value)));
    if least > most { 1.0..10.0 } else { least / 1.5..most * 1.5 }
}

/// Draws the axes with what they show, and the lines.
fn draw<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    axes: [&str; 2],
    lines: &[Line],
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(axes[0])
        .y_desc(axes[1])
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| format!("{value}"))
        .label_style(FONT)
        .draw()
        .map_err(failure)?;
    for (line, colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
        let drawn = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(drawn)
            .map_err(failure)?
            .label(line.label.as_str())
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{layers, residency};
    use crate::measurement::Measurement;

    fn row(operation: &str, shape: &str, variant: &str, median_us: f64) -> Measurement {
        Measurement {
            operation: operation.into(),
            shape: shape.into(),
            variant: variant.into(),
            median_us,
            ..Measurement::default()
        }
    }

    #[test]
    fn a_layer_is_drawn_beside_its_peers_and_its_limit() {
        let of = |shape: &str, peer: &str| Measurement {
            peer: peer.into(),
            peer_us: Some(300.0),
            share: Some(0.5),
            ..row("peer", shape, "bf16", 100.0)
        };
        let rows = [of("T=1", "a"), of("T=1", "b"), of("T=16", "a"), row("peer", "T=256", "int8", 7.0)];
        let plot = layers(&rows).expect("well-formed rows");
        for label in ["warpsmith", "\na\n", "\nb\n", "limit"] {
            assert!(plot.contains(label), "{label}");
        }
        assert!(layers(&[row("peer", "1x2", "bf16", 1.0)]).is_err());
        assert!(layers(&[]).is_ok());
    }

    #[test]
    fn each_way_to_use_experts_is_a_line() {
        let of = |variant: &str, time| row("peer residency", "T=2048", variant, time);
        let rows = [
            of("pinned, 100 % resident, uniform", 900.0),
            of("pinned, 50 % resident, uniform", 9000.0),
            of("pinned, 100 % resident, Zipf 1", 800.0),
        ];
        let plot = residency(&rows).expect("well-formed rows");
        assert!(plot.contains("uniform") && plot.contains("Zipf 1"), "{plot}");
        assert!(residency(&[of("pinned", 1.0)]).is_err());
    }
}
