//! Measurements as plots: against the roofline, and against the best peer.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::results::{Entry, chosen, fastest, rate};
use super::{lines, peer};
use crate::measurement::Measurement;

/// The plots of PEER layers and of experts in host memory, as parts of their files' names.
pub(super) const LAYERS: &str = "layers";
pub(super) const RESIDENCY: &str = "residency";

/// A file's plots by parts of their names: those that it has something to show in.
pub(super) fn of(rows: &[Measurement]) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    let all: Vec<_> = rows.iter().collect();
    let chosen = chosen(&all);
    if chosen.iter().any(|entry| entry.ours.tflops.is_some()) {
        plots.push(("roofline", roofline(rows)?));
    }
    if !chosen.is_empty() {
        plots.push(("ratio", ratio(rows)?));
    }
    let has = |operation: &str| rows.iter().any(|row| row.operation == operation);
    if has(peer::LAYER) {
        plots.push((LAYERS, lines::layers(rows)?));
    }
    if has(peer::RESIDENCY) {
        plots.push((RESIDENCY, lines::residency(rows)?));
    }
    Ok(plots)
}

/// Types and their colours, which the colour-blind can tell apart.
const COLOURS: [(&str, RGBColor); 7] = [
    ("bf16", RGBColor(0, 114, 178)),
    ("f16", RGBColor(230, 159, 0)),
    ("tf32", RGBColor(0, 158, 115)),
    ("f32", RGBColor(204, 121, 167)),
    ("f8e4m3", RGBColor(213, 94, 0)),
    ("f8e4m3-by-e5m2", RGBColor(86, 180, 233)),
    ("bf16-to-f32", RGBColor(120, 94, 60)),
];
pub(super) const FONT: (&str, i32) = ("sans-serif", 13);

/// The colour of a type; black for one that has none.
fn colour(dtype: &str) -> RGBColor {
    COLOURS.iter().find(|(name, _)| *name == dtype).map_or(BLACK, |&(_, colour)| colour)
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws on a white canvas of this size.
pub(super) fn svg(size: (u32, u32), draw: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let canvas = SVGBackend::with_string(&mut text, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failure)?;
        draw(&canvas)?;
        canvas.present().map_err(failure)?;
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Drawing errors borrow from the canvas.
pub(super) fn failure(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

/// An operation by its arithmetic intensity.
struct Point {
    /// Operations a byte.
    intensity: f64,
    tflops: f64,
    /// The best peer's rate.
    peer: Option<f64>,
}

/// The types' points; only of rows that say how much they move.
fn points<'a>(entries: &[Entry<'a>]) -> Result<BTreeMap<&'a str, Vec<Point>>> {
    let mut points: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    for Entry { ours, best, .. } in entries {
        let Some(bytes) = ours.bytes.filter(|_| ours.has_products()) else { continue };
        let tflops = rate(ours, ours.median_us)?;
        let peer = best.and_then(|best| best.peer_us).map(|time| rate(ours, time)).transpose()?;
        let point = Point { intensity: tflops * ours.median_us * 1e6 / bytes, tflops, peer };
        points.entry(&ours.dtype).or_default().push(point);
    }
    Ok(points)
}

/// Rates over arithmetic intensity, below what a copy's bandwidth and the highest rate of the run in the same type allow. Filled marks are
/// ours, crosses the best peer's.
fn roofline(rows: &[Measurement]) -> Result<String> {
    let points = points(&chosen(&rows.iter().collect::<Vec<_>>()))?;
    let mut roofs = BTreeMap::new();
    for &dtype in points.keys() {
        roofs.extend(fastest(rows, dtype)?.map(|roof| (dtype, roof)));
    }
    let all = || points.values().flatten();
    let range = |value: fn(&Point) -> f64| {
        let (least, most) = all().fold((f64::INFINITY, 0f64), |(least, most), point| {
            (least.min(value(point)), most.max(value(point)))
        });
        if least > most { 1.0..10.0 } else { least / 1.5..most * 1.5 }
    };
    let (x, y) = (range(|point| point.intensity), range(|point| point.tflops));
    let y = y.start..roofs.values().fold(y.end, |top, roof| top.max(1.2 * roof));
    let slope = rows.iter().find_map(|row| row.ceiling_tbps);
    svg((860, 560), |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(x.clone().log_scale(), y.clone().log_scale())
            .map_err(failure)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("operations a byte")
            .y_desc("TFLOP/s")
            .x_label_formatter(&|intensity| format!("{intensity}"))
            .y_label_formatter(&|rate| format!("{rate}"))
            .label_style(FONT)
            .draw()
            .map_err(failure)?;
        for (dtype, points) in &points {
            let colour = colour(dtype);
            if let (Some(&flat), Some(slope)) = (roofs.get(dtype), slope) {
                let line = [x.start, (flat / slope).clamp(x.start, x.end), x.end];
                let line = line.map(|x| (x, (slope * x).min(flat)));
                chart.draw_series(LineSeries::new(line, colour.mix(0.6))).map_err(failure)?;
            }
            let ours =
                points.iter().map(|point| Circle::new((point.intensity, point.tflops), 4, colour.filled()));
            chart
                .draw_series(ours)
                .map_err(failure)?
                .label(*dtype)
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
            let peers = points.iter().filter_map(|point| Some((point.intensity, point.peer?)));
            chart.draw_series(peers.map(|at| Cross::new(at, 4, colour))).map_err(failure)?;
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    })
}

/// The best peer's time over ours, by size: above 1, ours is faster. Rings stand for the plain product, where nothing computes the
/// same.
fn ratio(rows: &[Measurement]) -> Result<String> {
    const STEP: u32 = 17;
    const LABELS: u32 = 130;
    let entries = chosen(&rows.iter().collect::<Vec<_>>());
    let entries: Vec<_> = entries.iter().filter(|entry| entry.ours.operation != "linear").collect();
    let mut shapes: Vec<&str> = Vec::new();
    for entry in &entries {
        if !shapes.contains(&entry.ours.shape.as_str()) {
            shapes.push(&entry.ours.shape);
        }
    }
    let column = |shape: &str| shapes.iter().position(|&other| other == shape).unwrap_or(0) as f64 + 0.5;
    let of = |entry: &Entry<'_>| {
        let peer = entry.best.or(entry.product)?;
        Some((column(&entry.ours.shape), peer.ratio?, entry.best.is_some()))
    };
    let ratios = || entries.iter().filter_map(|entry| of(entry)).map(|(_, ratio, _)| ratio);
    let y = ratios().fold(0.9, f64::min) * 0.95..ratios().fold(1.1, f64::max) * 1.05;
    let columns = shapes.len().max(1);
    let size = ((STEP * columns as u32).max(500) + 100, 420 + LABELS);
    svg(size, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(LABELS)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..columns as f64, y.clone())
            .map_err(failure)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .light_line_style(TRANSPARENT)
            .y_desc("best peer's time / ours")
            .y_label_formatter(&|ratio| format!("{ratio:.2}"))
            .label_style(FONT)
            .draw()
            .map_err(failure)?;
        let across = |ratio: f64| [(0.0, ratio), (columns as f64, ratio)];
        chart.draw_series(LineSeries::new(across(1.0), BLACK.stroke_width(2))).map_err(failure)?;
        for (dtype, colour) in COLOURS {
            let own: Vec<_> = entries
                .iter()
                .filter(|entry| entry.ours.dtype == dtype)
                .filter_map(|entry| of(entry))
                .collect();
            if own.is_empty() {
                continue;
            }
            let mark = |&(x, y, same): &(f64, f64, bool)| {
                let style: ShapeStyle = if same { colour.filled() } else { colour.stroke_width(1) };
                Circle::new((x, y), 4, style)
            };
            chart
                .draw_series(own.iter().map(mark))
                .map_err(failure)?
                .label(dtype)
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
        let below = chart.plotting_area().get_pixel_range().1.end;
        for shape in &shapes {
            let (x, _) = chart.backend_coord(&(column(shape), y.start));
            let style = TextStyle::from(FONT.into_font().transform(FontTransform::Rotate90));
            let text = shape.replace('x', " × ");
            canvas.draw(&Text::new(text, (x + 5, below + 6), style)).map_err(failure)?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// The types' names beside their colours.
pub(super) fn legend<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Result<()>
where
    X: Ranged,
    Y: Ranged,
{
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).label_font(FONT);
    labels.draw().map_err(failure)
}
