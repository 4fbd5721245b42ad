//! Timelines of a pipeline's step and of a backward pass with averages, from events on streams, as SVG.

use std::error::Error as StdError;
use std::path::Path;

use crate::Result;
use crate::data::{GradientOptions, Wire};
use crate::pipeline::{Schedule, run};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};
use warpsmith::{Event, StreamPriority};

use super::checks::wrong;
use super::pipelines::{Layers, MICROBATCHES, links};
use super::replicas::Model;
use super::{Options, Rank, Sharing};

/// Steps before the one that is drawn.
const WARM_UP: usize = 3;
/// Pixels of a lane, and of what is around them.
const LANE: u32 = 46;
const AROUND: u32 = 90;
const WIDTH: u32 = 1400;
/// The least part of the width that has room for a name.
const ROOM: f64 = 0.02;

/// What is done from `start` to `end`, in µs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Bar {
    lane: String,
    name: String,
    start: f64,
    end: f64,
}

/// The time of an event after the start, in µs.
fn after(start: &Event, event: &Event) -> Result<f64> {
    Ok(event.elapsed_since(start)?.as_secs_f64() * 1e6)
}

/// The bars of all ranks, in their order.
fn of_all_ranks(rank: &Rank, own: &[Bar]) -> Result<Vec<Bar>> {
    let of = |error: serde_json::Error| wrong("timeline", "bars".into(), error.to_string());
    let all = rank.communicator.gather_bytes(serde_json::to_vec(own).map_err(of)?)?;
    let mut bars = Vec::new();
    for bytes in all {
        bars.extend(serde_json::from_slice::<Vec<Bar>>(&bytes).map_err(of)?);
    }
    Ok(bars)
}

/// Draws both timelines into a folder.
pub(super) fn draw(folder: &Path, options: &Options, rank: &Rank) -> Result<()> {
    let mut pipeline = Vec::new();
    for schedule in [Schedule::OneForwardOneBackward, Schedule::EagerOneForwardOneBackward] {
        let own = pipeline_step(options, rank, schedule)?;
        pipeline.extend(of_all_ranks(rank, &own)?);
    }
    let data = of_all_ranks(rank, &backward_pass(options, rank)?)?;
    if rank.host.rank() > 0 {
        return Ok(());
    }
    for (name, title, bars) in [
        (
            "pipeline.svg",
            "A step of a pipeline: forward passes F, gradients of inputs B and of weights W",
            &pipeline,
        ),
        ("data-parallel.svg", "A backward pass of replicas, and averages of its gradients", &data),
    ] {
        let path = folder.join(name);
        let failed = |error: Box<dyn StdError>| {
            wrong("svg", "a folder that can be written to".into(), format!("{}: {error}", path.display()))
        };
        picture(&path, title, bars).map_err(failed)?;
    }
    Ok(())
}

/// What is usual, where there are kernels to share a GPU with.
fn sharing(rank: &Rank) -> Sharing {
    let all = rank.sharings();
    all[1.min(all.len() - 1)]
}

fn pipeline_step(options: &Options, rank: &Rank, schedule: Schedule) -> Result<Vec<Bar>> {
    let (links, stream) = (links(rank, sharing(rank))?, rank.device.default_stream());
    let mut stage = Layers::new(rank, options.side / 2)?;
    for _ in 0..WARM_UP {
        run(schedule, MICROBATCHES, &links, &mut stage)?;
    }
    rank.communicator.barrier(&rank.device)?;
    stage.passes = Some(Vec::new());
    let start = stream.record()?;
    run(schedule, MICROBATCHES, &links, &mut stage)?;
    let lane = format!("{schedule:?}, stage {}", rank.communicator.rank());
    let passes = stage.passes.take().unwrap_or_default();
    let bar = |(name, [from, to]): (String, [Event; 2])| -> Result<Bar> {
        Ok(Bar { lane: lane.clone(), name, start: after(&start, &from)?, end: after(&start, &to)? })
    };
    passes.into_iter().map(bar).collect()
}

fn backward_pass(options: &Options, rank: &Rank) -> Result<Vec<Bar>> {
    let mut model = Model::new(&rank.device, options.side)?;
    // A bucket for each layer.
    let options = GradientOptions { bucket_bytes: 1, wire: Wire::Bf16, priority: StreamPriority::High };
    let mut averages = model.averages(&rank.sharing(sharing(rank))?, options)?;
    for _ in 0..WARM_UP {
        model.step(Some(&mut averages), |_, _| Ok(()))?;
    }
    rank.communicator.barrier(&rank.device)?;
    let stream = rank.device.default_stream();
    let start = stream.record()?;
    let mut marks = Vec::new();
    model.step(Some(&mut averages), |layer, of| {
        marks.push((layer, of.is_some(), of.unwrap_or(&stream).record()?));
        Ok(())
    })?;
    let mut bars: Vec<Bar> = Vec::new();
    for pair in marks.chunks_exact(2) {
        let (layer, is_average, from) = &pair[0];
        let what = if *is_average { "averages" } else { "backward" };
        // The stream of averages is idle before the pass that it waits for: that comes right before.
        let earliest = if *is_average { bars.last().map_or(0.0, |bar| bar.end) } else { 0.0 };
        bars.push(Bar {
            lane: format!("rank {}, {what}", rank.communicator.rank()),
            name: format!("layer {layer}"),
            start: after(&start, from)?.max(earliest),
            end: after(&start, &pair[1].2)?,
        });
    }
    Ok(bars)
}

/// The outlines and names of bars. It is no pure black, which a page may show in the colour of its text: bars are light on dark pages too.
const ON_BARS: RGBColor = RGBColor(31, 35, 40);

/// A lane for each name of one, from top to bottom, with its bars from left to right.
fn picture(path: &Path, title: &str, bars: &[Bar]) -> std::result::Result<(), Box<dyn StdError>> {
    let mut lanes: Vec<&str> = Vec::new();
    bars.iter().for_each(|bar| {
        if !lanes.contains(&bar.lane.as_str()) {
            lanes.push(&bar.lane);
        }
    });
    let end = bars.iter().map(|bar| bar.end).fold(1.0, f64::max);
    let begin = bars.iter().map(|bar| bar.start).fold(end, f64::min);
    let size = (WIDTH, AROUND + LANE * lanes.len() as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(260)
        .build_cartesian_2d(begin..end, (lanes.len() as f64)..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc("µs")
        .x_label_formatter(&|time| format!("{time:.0}"))
        .draw()?;
    let label = ("sans-serif", 14).into_font();
    for (lane, name) in lanes.iter().enumerate() {
        let style = TextStyle::from(label.clone()).pos(Pos::new(HPos::Right, VPos::Center));
        let shifted =
            EmptyElement::at((begin, lane as f64 + 0.5)) + Text::new((*name).to_owned(), (-8, 0), style);
        chart.plotting_area().draw(&shifted)?;
        for bar in bars.iter().filter(|bar| bar.lane == *name) {
            let color = match bar.name.chars().next() {
                Some('F') => RGBColor(120, 170, 220),
                Some('B') => RGBColor(240, 170, 110),
                Some('W') => RGBColor(150, 200, 140),
                _ => RGBColor(190, 170, 220),
            };
            let corners = [(bar.start, lane as f64 + 0.1), (bar.end, lane as f64 + 0.9)];
            chart.draw_series([Rectangle::new(corners, color.filled()), Rectangle::new(corners, ON_BARS)])?;
            if (bar.end - bar.start) / (end - begin) > ROOM {
                let style = TextStyle::from(label.clone()).pos(Pos::new(HPos::Center, VPos::Center));
                let style = style.color(&ON_BARS);
                let middle = ((bar.start + bar.end) / 2.0, lane as f64 + 0.5);
                chart.draw_series([Text::new(bar.name.clone(), middle, style)])?;
            }
        }
    }
    area.present()?;
    Ok(())
}
