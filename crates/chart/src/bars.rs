//! Bar charts as SVG within a page, whose style sheet has the colours of their classes.

use std::fmt::Write;

use crate::text::escape;

/// A bar of one or more segments.
pub struct Bar {
    /// Text before the bar.
    pub label: String,
    /// Length of each segment, and the CSS class of its colour.
    pub segments_with_css_class: Vec<(f64, &'static str)>,
    /// Text behind the bar.
    pub value_text: String,
}

/// Width of the picture and of its columns, in its own units; a letter of its font is at most `MAX_LETTER_WIDTH` wide.
const WIDTH: f64 = 760.0;
const LABEL_COLUMN_WIDTH: f64 = 250.0;
const VALUE_COLUMN_WIDTH: f64 = 170.0;
const GAP: f64 = 8.0;
const ROW_HEIGHT: f64 = 24.0;
const MAX_LETTER_WIDTH: f64 = 8.0;

/// Draws a bar chart; the longest bar takes the full width. The SVG is in an element of class `scroll`, so
/// that a page can scroll it on a narrow screen.
pub fn bar_chart_svg(title: &str, bars: &[Bar]) -> String {
    let room = WIDTH - LABEL_COLUMN_WIDTH - VALUE_COLUMN_WIDTH;
    let length = |bar: &Bar| {
        bar.segments_with_css_class
            .iter()
            .map(|(length, _)| length.max(0.0))
            .sum::<f64>()
    };
    let longest = bars.iter().map(length).fold(0.0, f64::max);
    let scale = if longest > 0.0 { room / longest } else { 0.0 };
    let height = ROW_HEIGHT * row_count_to_f64(bars.len()) + GAP;
    let mut svg = format!(
        r#"<div class="scroll"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#,
        escape(title)
    );
    for (row, bar) in bars.iter().enumerate() {
        let top = GAP / 2.0 + ROW_HEIGHT * row_count_to_f64(row);
        let base = top + ROW_HEIGHT * 0.68;
        append_text(
            &mut svg,
            "end",
            LABEL_COLUMN_WIDTH - GAP,
            base,
            &truncate(&bar.label, LABEL_COLUMN_WIDTH - GAP),
        );
        let mut left = LABEL_COLUMN_WIDTH;
        for (length, class) in &bar.segments_with_css_class {
            let width = length.max(0.0) * scale;
            write!(
                svg,
                r#"<rect class="{class}" x="{left:.1}" y="{:.1}" width="{width:.1}" height="{:.1}"/>"#,
                top + 3.0,
                ROW_HEIGHT - 6.0
            )
            .expect("a String takes all");
            left += width;
        }
        append_text(
            &mut svg,
            "start",
            left + GAP,
            base,
            &truncate(&bar.value_text, VALUE_COLUMN_WIDTH - GAP),
        );
    }
    svg.push_str("</svg></div>");
    svg
}

fn append_text(svg: &mut String, anchor: &str, x: f64, y: f64, text: &str) {
    write!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
        escape(text)
    )
    .expect("a String takes all");
}

/// Shortens a text to the available width.
fn truncate(text: &str, room: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few dozen"
    )]
    let letters = (room / MAX_LETTER_WIDTH) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(letters - 1).collect();
    short.push('…');
    short
}

#[expect(clippy::cast_precision_loss, reason = "rows of a picture")]
fn row_count_to_f64(rows: usize) -> f64 {
    rows as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_takes_the_room_and_text_is_escaped() {
        let bar = |label: &str, length| Bar {
            label: label.to_owned(),
            segments_with_css_class: vec![(length, "in")],
            value_text: "<&\">".to_owned(),
        };
        let svg = bar_chart_svg("t", &[bar("a", 2.0), bar(&"long ".repeat(20), 4.0)]);
        assert!(
            svg.contains(r#"width="340.0""#) && svg.contains(r#"width="170.0""#),
            "{svg}"
        );
        assert!(svg.contains("&lt;&amp;&quot;&gt;") && svg.contains('…'));
        let nothing = bar_chart_svg("t", &[bar("a", 0.0)]);
        assert!(nothing.contains(r#"width="0.0""#), "{nothing}");
    }
}
