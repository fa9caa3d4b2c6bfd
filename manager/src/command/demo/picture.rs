//! The picture of who ran when: one panel per leg, one row per job, all on one time scale.

use super::leg::Leg;
use super::report::{Report, size};
use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const WIDTH: u32 = 1200;
const HEAD: u32 = 64;
const PANEL: u32 = 220;
/// Where the panels' time axes begin.
const LEFT: i32 = 100;
/// Distinguishable with all common kinds of colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the picture into an SVG file.
pub(super) fn draw(report: &Report, path: &Path) -> anyhow::Result<()> {
    let height = HEAD + PANEL * report.legs.len() as u32;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    draw_all(report, &root).with_context(|| format!("drawing {}", path.display()))
}

fn draw_all(report: &Report, root: &Area<'_>) -> anyhow::Result<()> {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    draw_head(report, &head)?;
    let spans = report.legs.iter().map(|leg| leg.span());
    let longest = spans.map(|(first, last)| last - first).max().unwrap_or(0);
    let panels = body.split_evenly((report.legs.len(), 1));
    panels.iter().zip(&report.legs).try_for_each(|(panel, leg)| draw_leg(panel, leg, longest))?;
    Ok(root.present()?)
}

fn draw_head(report: &Report, head: &Area<'_>) -> anyhow::Result<()> {
    let figures = report.figures();
    let title = format!(
        "{} trainings share {} of GPU memory ({})",
        report.legs.first().map_or(0, |leg| leg.jobs.len()),
        size(figures.gpu_memory_bytes),
        figures.gpu
    );
    let bars = "A bar: the job may submit work. Bars overlap in time while the jobs' memory fits together.";
    head.draw(&Text::new(title, (LEFT, 16), ("sans-serif", 20)))?;
    Ok(head.draw(&Text::new(bars, (LEFT, 42), ("sans-serif", 14).into_font().color(&BLACK.mix(0.7))))?)
}

fn draw_leg(panel: &Area<'_>, leg: &Leg, longest: u64) -> anyhow::Result<()> {
    let (first, last) = leg.span();
    let seconds = |micros: u64| micros.saturating_sub(first) as f64 / 1e6;
    let rows = leg.jobs.len() as f64;
    let switches: u64 = leg.jobs.iter().map(|(_, job)| job.switches).sum();
    let title = format!("Switching {}: {switches} switches, {:.1} s", leg.how(), leg.took.as_secs_f64());
    let caption = Text::new(title, (LEFT, 6), ("sans-serif", 16));
    panel.draw(&caption)?;
    let mut chart = ChartBuilder::on(panel)
        .margin_top(30)
        .margin_right(20)
        .margin_bottom(8)
        .x_label_area_size(40)
        .y_label_area_size(LEFT as u32)
        .build_cartesian_2d(0.0..(longest as f64 / 1e6).max(0.001), 0.0..rows)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().y_labels(0).x_labels(12).x_desc("seconds").light_line_style(TRANSPARENT);
    mesh.label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 13)).draw()?;
    for (row, (_, job)) in leg.jobs.iter().enumerate() {
        let top = rows - row as f64;
        let colour = COLOURS[row % COLOURS.len()];
        let bars = job.grants.iter().map(|(from, to)| {
            let corners = [(seconds(*from), top - 0.85), (seconds(to.unwrap_or(last)), top - 0.15)];
            Rectangle::new(corners, colour.filled())
        });
        chart.draw_series(bars)?;
        let (_, y) = chart.backend_coord(&(0.0, top - 0.5));
        let right = Pos::new(HPos::Right, VPos::Center);
        let style = ("sans-serif", 14).into_font().color(&BLACK).pos(right);
        panel.draw(&Text::new(job.name.clone(), (LEFT - 10, y - panel.get_base_pixel().1), style))?;
    }
    Ok(())
}
