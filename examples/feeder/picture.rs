//! The picture: when parsing, copying and computing went on, and results came back.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::timeline::{Lane, Span};

const SIZE: (u32, u32) = (1000, 300);
/// Where the time axis begins.
const LEFT: i32 = 100;
/// Distinguishable with all common kinds of colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; Lane::ALL.len()] =
    [RGBColor(230, 159, 0), RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Draws spans into an SVG file: at most `seconds` of them, from the middle one on.
pub fn draw(spans: &[Span], seconds: f64, title: &str, path: &Path) -> Result<()> {
    draw_all(spans, seconds, title, path).with_context(|| format!("cannot draw {}", path.display()))
}

fn draw_all(spans: &[Span], seconds: f64, title: &str, path: &Path) -> Result<()> {
    let (first, seconds) = window(spans, seconds);
    let length = seconds * 1e3;
    let rows = Lane::ALL.len() as f64;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title, (LEFT, 14), ("sans-serif", 17)))?;
    let mut chart = ChartBuilder::on(&area)
        .margin_top(42)
        .margin_right(24)
        .margin_bottom(8)
        .x_label_area_size(44)
        .y_label_area_size(LEFT as u32)
        .build_cartesian_2d(0.0..length, 0.0..rows)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().y_labels(0).x_labels(12).x_desc("milliseconds").light_line_style(TRANSPARENT);
    mesh.label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 13)).draw()?;
    for (lane, colour) in Lane::ALL.into_iter().zip(COLOURS) {
        let top = rows - f64::from(lane as u8);
        let of_lane = spans.iter().filter(|span| span.lane == lane);
        let bars = of_lane.filter_map(|span| {
            let [from, to] = [span.from, span.to].map(|at| ((at - first) * 1e3).clamp(0.0, length));
            (from < to).then(|| Rectangle::new([(from, top - 0.85), (to, top - 0.15)], colour.filled()))
        });
        chart.draw_series(bars)?;
        let (_, y) = chart.backend_coord(&(0.0, top - 0.5));
        let style = ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(lane.name(), (LEFT - 10, y), style))?;
    }
    Ok(area.present()?)
}

/// Where the middle one of the spans begins, and how much of the time behind it is to be drawn; all the time if
/// that is no more.
fn window(spans: &[Span], seconds: f64) -> (f64, f64) {
    let mut begins: Vec<f64> = spans.iter().map(|span| span.from).collect();
    begins.sort_by(f64::total_cmp);
    let first = begins.first().copied().unwrap_or_default();
    let last = spans.iter().map(|span| span.to).fold(first, f64::max);
    let middle = begins.get(begins.len() / 2).copied().unwrap_or(first);
    let from = middle.min(last - seconds).max(first);
    (from, seconds.min(last - from).max(1e-6))
}
