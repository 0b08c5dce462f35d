//! Texts of a picture: escaping, line breaking, and number formats of axes.

use crate::data::NumberFormat;

/// Escapes text for use between tags or in quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are forbidden in pages (HTML, "Preprocessing the input stream").
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Breaks text between words into lines of at most `letters` letters; a longer word has its own line.
pub(crate) fn wrap(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats a number of an axis.
pub(crate) fn format_axis_number(value: f64, format: NumberFormat) -> String {
    if format == NumberFormat::Bytes && value.fract() == 0.0 {
        for (unit, name) in [(1_048_576.0, "M"), (1024.0, "K")] {
            if value >= unit && value % unit == 0.0 {
                return format!("{}{name}", value / unit);
            }
        }
    }
    format_decimal(value)
}

/// Formats a number with four significant digits, and thin spaces between groups of three.
fn format_decimal(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e15).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let digits: usize = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 1.0 => 3,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let mut grouped = String::new();
    let length = whole.trim_start_matches('-').len();
    for (at, letter) in whole.chars().enumerate() {
        let behind = whole.len() - at;
        if length > 4 && behind % 3 == 0 && at > 0 && letter != '-' && !grouped.ends_with('-') {
            grouped.push('\u{2009}');
        }
        grouped.push(letter);
    }
    if fraction.is_empty() {
        grouped
    } else {
        format!("{grouped}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let shown = [0.0, 1.0, 0.25, 12.5, 1024.0, 16384.0, 1e6, -20000.0, 0.001]
            .map(|value| format_axis_number(value, NumberFormat::Decimal));
        assert_eq!(
            shown,
            [
                "0",
                "1",
                "0.25",
                "12.5",
                "1024",
                "16 384",
                "1 000 000",
                "-20 000",
                "0.001"
            ]
            .map(|text| text.replace(' ', "\u{2009}"))
        );
        let bytes = [8.0, 1024.0, 1536.0, 65536.0, 4_194_304.0];
        assert_eq!(
            bytes.map(|value| format_axis_number(value, NumberFormat::Bytes)),
            ["8", "1K", "1536", "64K", "4M"]
        );
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a-very-long-word b", 4), ["a-very-long-word", "b"]);
        assert!(wrap("  ", 4).is_empty());
    }

    #[test]
    fn markup_and_control_characters_are_escaped() {
        assert_eq!(escape("<a&\"'\u{7}>"), "&lt;a&amp;&quot;&#39;\u{fffd}&gt;");
    }
}
