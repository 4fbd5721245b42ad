//! Measurements as plots: against the roofline, and against the best baseline.

use std::collections::BTreeMap;
use std::ops::Range;

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

/// The width of a plot: about that of a page, so that its letters have the size of the text beside them.
pub(super) const WIDTH: u32 = 760;

/// Colours of paper and ink, for readers of light and of dark pages.
const STYLE: &str = "<style>svg{color:#1f2328}.paper{fill:#ffffff}\
                     @media(prefers-color-scheme:dark){svg{color:#d1d7e0}.paper{fill:#151b23}}</style>\n";

/// Draws on a canvas of this size. What is drawn in black and white has the colours of [`STYLE`].
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
    Ok(themed(&text))
}

/// A picture whose black and white follow the reader's colour scheme; one that does so already is the same.
pub(super) fn themed(text: &str) -> String {
    let is_style = |line: &&str| line.starts_with("<style>svg{color:");
    let text: String = text.split_inclusive('\n').filter(|line| !is_style(line)).collect();
    let text = text
        .replace("fill=\"#FFFFFF\"", "class=\"paper\"")
        .replace("fill=\"#000000\"", "fill=\"currentColor\"")
        .replace("stroke=\"#000000\"", "stroke=\"currentColor\"");
    match text.split_once('\n') {
        Some((head, rest)) => format!("{head}\n{STYLE}{rest}"),
        None => text,
    }
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
    /// The best baseline's rate.
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
/// ours, crosses the best baseline's.
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
    svg((WIDTH, 520), |canvas| {
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

/// More sizes than this have no names beside them.
const NAMED: usize = 48;

/// The best baseline's time over ours: above 1, ours is faster. Rings stand for the plain product, where nothing computes the same. A few sizes have a
/// line each, with their names; many are ordered by the time that ours takes.
fn ratio(rows: &[Measurement]) -> Result<String> {
    let entries = chosen(&rows.iter().collect::<Vec<_>>());
    let entries: Vec<_> = entries.iter().filter(|entry| entry.ours.operation != "linear").collect();
    let mut shapes: Vec<&str> = Vec::new();
    for entry in &entries {
        if !shapes.contains(&entry.ours.shape.as_str()) {
            shapes.push(&entry.ours.shape);
        }
    }
    let marks: Vec<Mark<'_>> = entries.iter().filter_map(|entry| Mark::of(entry)).collect();
    if shapes.len() > NAMED { by_time(&marks) } else { by_size(&shapes, &marks) }
}

/// A ratio.
struct Mark<'a> {
    dtype: &'a str,
    shape: &'a str,
    /// Microseconds of ours.
    time: f64,
    ratio: f64,
    /// Whether the baseline computes the same.
    same: bool,
}

impl<'a> Mark<'a> {
    fn of(entry: &Entry<'a>) -> Option<Self> {
        let Entry { ours, best, product } = entry;
        let ratio = best.or(*product)?.ratio?;
        Some(Self {
            dtype: &ours.dtype,
            shape: &ours.shape,
            time: ours.median_us,
            ratio,
            same: best.is_some(),
        })
    }

    fn style(&self) -> ShapeStyle {
        let colour = colour(self.dtype);
        if self.same { colour.filled() } else { colour.stroke_width(1) }
    }
}

/// What the ratios' axis has to hold.
fn ratios(marks: &[Mark<'_>]) -> Range<f64> {
    let ratios = || marks.iter().map(|mark| mark.ratio);
    ratios().fold(0.9, f64::min) * 0.95..ratios().fold(1.1, f64::max) * 1.05
}

const RATIO: &str = "best baseline's time / ours";

/// Ratios by size, a line of the plot for each.
fn by_size(shapes: &[&str], marks: &[Mark<'_>]) -> Result<String> {
    const STEP: u32 = 17;
    const LABELS: u32 = 190;
    let lines = shapes.len().max(1);
    let line = |shape: &str| shapes.iter().position(|&other| other == shape).unwrap_or(0) as f64 + 0.5;
    let (x, size) = (ratios(marks), (WIDTH, STEP * lines as u32 + 90));
    svg(size, |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(LABELS)
            .build_cartesian_2d(x.clone(), lines as f64..0.0)
            .map_err(failure)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .light_line_style(TRANSPARENT)
            .x_desc(RATIO)
            .x_label_formatter(&|ratio| format!("{ratio:.2}"))
            .label_style(FONT)
            .draw()
            .map_err(failure)?;
        let down = [(1.0, 0.0), (1.0, lines as f64)];
        chart.draw_series(LineSeries::new(down, BLACK.stroke_width(2))).map_err(failure)?;
        draw_marks(&mut chart, marks, |mark| (mark.ratio, line(mark.shape)))?;
        for shape in shapes {
            let (_, y) = chart.backend_coord(&(x.start, line(shape)));
            let style = TextStyle::from(FONT.into_font());
            canvas.draw(&Text::new(shape.replace('x', " × "), (12, y - 6), style)).map_err(failure)?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// Ratios by the time that ours takes.
fn by_time(marks: &[Mark<'_>]) -> Result<String> {
    let times = || marks.iter().map(|mark| mark.time);
    let x = times().fold(f64::INFINITY, f64::min) / 1.2..times().fold(0.0, f64::max) * 1.2;
    let y = ratios(marks);
    svg((WIDTH, 480), |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(x.clone().log_scale(), y.log_scale())
            .map_err(failure)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("µs of ours")
            .y_desc(RATIO)
            .x_label_formatter(&|time| format!("{time}"))
            .y_label_formatter(&|ratio| format!("{ratio:.2}"))
            .label_style(FONT)
            .draw()
            .map_err(failure)?;
        let across = [(x.start, 1.0), (x.end, 1.0)];
        chart.draw_series(LineSeries::new(across, BLACK.stroke_width(2))).map_err(failure)?;
        draw_marks(&mut chart, marks, |mark| (mark.time, mark.ratio))?;
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// Draws the marks of each type, and names it in the legend.
fn draw_marks<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    marks: &[Mark<'_>],
    at: impl Fn(&Mark<'_>) -> (f64, f64),
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for (dtype, colour) in COLOURS {
        let own: Vec<_> = marks.iter().filter(|mark| mark.dtype == dtype).collect();
        if own.is_empty() {
            continue;
        }
        chart
            .draw_series(own.iter().map(|mark| Circle::new(at(mark), 4, mark.style())))
            .map_err(failure)?
            .label(dtype)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::{NAMED, of};
    use crate::measurement::Measurement;

    #[test]
    fn black_and_white_follow_the_readers_colours_and_other_colours_stay() {
        let text = "<svg>\n<rect fill=\"#FFFFFF\"/>\n<line stroke=\"#000000\" fill=\"#0072B2\"/>\n";
        let themed = super::themed(text);
        assert!(themed.contains("<rect class=\"paper\"/>") && themed.contains("prefers-color-scheme:dark"));
        assert!(themed.contains("stroke=\"currentColor\" fill=\"#0072B2\""), "{themed}");
        assert_eq!(super::themed(&themed), themed);
    }

    #[test]
    fn few_sizes_are_named_and_no_plot_is_wider_than_a_page() {
        for (count, named) in [(NAMED, true), (NAMED + 1, false)] {
            let row = |m: usize| {
                let shape = format!("{}x2x3", m + 1);
                let row =
                    Measurement::against("linear bias relu", "bf16", &shape, [2.0, 3.0], "cublaslt-fused");
                Measurement { suite: "main".into(), ..row }
            };
            let rows: Vec<_> = (0..count).map(row).collect();
            let plots = of(&rows).expect("plots");
            let (_, ratio) = plots.iter().find(|(name, _)| *name == "ratio").expect("ratios");
            assert!(ratio.starts_with("<svg width=\"760\""), "{}", &ratio[..80]);
            assert_eq!(ratio.contains("7 × 2 × 3"), named);
        }
    }
}
