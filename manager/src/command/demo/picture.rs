//! The picture of who ran when: one panel per leg, one row per job.

use super::leg::Leg;
use super::report::Report;
use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 1200;
const PANEL: u32 = 220;
/// Distinguishable with all common kinds of colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];

/// Draws the picture into an SVG file.
pub(super) fn draw(report: &Report, path: &Path) -> anyhow::Result<()> {
    let size = (WIDTH, PANEL * report.legs.len() as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    let drawn = root.fill(&WHITE).map_err(anyhow::Error::from).and_then(|()| {
        let panels = root.split_evenly((report.legs.len(), 1));
        panels.iter().zip(&report.legs).try_for_each(|(panel, leg)| draw_leg(panel, leg))?;
        Ok(root.present()?)
    });
    drawn.with_context(|| format!("drawing {}", path.display()))
}

fn draw_leg(panel: &DrawingArea<SVGBackend<'_>, Shift>, leg: &Leg) -> anyhow::Result<()> {
    let first = leg.jobs.iter().flat_map(|(_, job)| &job.grants).map(|(from, _)| *from).min().unwrap_or(0);
    let last =
        leg.jobs.iter().flat_map(|(_, job)| &job.grants).filter_map(|(_, to)| *to).max().unwrap_or(first);
    let seconds = |micros: u64| micros.saturating_sub(first) as f64 / 1e6;
    let rows = leg.jobs.len() as f64;
    let title = if leg.at_boundary { "switching at boundaries" } else { "switching by deadline" };
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("Who held the GPU, {title}"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..seconds(last).max(0.001), 0.0..rows)?;
    chart.configure_mesh().disable_mesh().y_labels(0).x_desc("seconds").draw()?;
    for (row, (_, job)) in leg.jobs.iter().enumerate() {
        let top = rows - row as f64;
        let colour = COLOURS[row % COLOURS.len()];
        let bars = job.grants.iter().map(|(from, to)| {
            let corners = [(seconds(*from), top - 0.85), (seconds(to.unwrap_or(last)), top - 0.15)];
            Rectangle::new(corners, colour.filled())
        });
        chart.draw_series(bars)?;
        let place = chart.backend_coord(&(0.0, top - 0.5));
        let (x, y) = panel.get_base_pixel();
        let style = ("sans-serif", 14).into_font().color(&BLACK);
        panel.draw(&Text::new(job.name.clone(), (place.0 - x - 80, place.1 - y - 7), style))?;
    }
    Ok(())
}
