//! A parsed Markdown document, with the parts that the checks need.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A Markdown document.
pub(super) struct Page {
    /// The path of the document from the root of the repository.
    pub(super) path: PathBuf,
    /// Number of lines of the document.
    pub(super) lines: usize,
    pub(super) links: Vec<Link>,
    /// Anchors of the document's headings, as links name them after `#`.
    pub(super) anchors: HashSet<String>,
    /// Paragraphs, list items and headings of the document, without code blocks and tables.
    pub(super) passages: Vec<Passage>,
}

/// A link or an image.
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) target: String,
    pub(super) text: String,
}

/// A piece of text without a break, such as a paragraph.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) line: usize,
    pub(super) is_heading: bool,
    /// The text of the passage, in which each piece of inline code is one word.
    pub(super) text: String,
}

impl Page {
    pub(super) fn parse(path: PathBuf, text: &str) -> Self {
        let mut reader = MarkdownParser::new(text);
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            reader.read(event, range.start);
        }
        reader.flush(false);
        Self {
            path,
            lines: text.lines().count(),
            links: reader.links,
            anchors: reader.anchors,
            passages: reader.passages,
        }
    }
}

/// The state of the parser while it reads a document.
struct MarkdownParser<'t> {
    source: &'t str,
    links: Vec<Link>,
    open_links: Vec<usize>,
    anchors: HashSet<String>,
    times_used: HashMap<String, usize>,
    passages: Vec<Passage>,
    text: String,
    line: usize,
    /// The number of open code blocks, tables and HTML blocks, whose text is ignored.
    open_ignored_blocks: usize,
}

impl<'t> MarkdownParser<'t> {
    fn new(source: &'t str) -> Self {
        Self {
            source,
            links: Vec::new(),
            open_links: Vec::new(),
            anchors: HashSet::new(),
            times_used: HashMap::new(),
            passages: Vec::new(),
            text: String::new(),
            line: 0,
            open_ignored_blocks: 0,
        }
    }

    fn read(&mut self, event: Event<'_>, at: usize) {
        match event {
            Event::Start(tag) => self.start(tag, at),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.add(&text, at),
            Event::Code(code) => self.add(&one_word(&code), at),
            Event::SoftBreak | Event::HardBreak => self.add(" ", at),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>, at: usize) {
        match tag {
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.open_links.push(self.links.len());
                self.links.push(Link {
                    line: self.line_of(at),
                    target: dest_url.to_string(),
                    text: String::new(),
                });
            }
            Tag::CodeBlock(_) | Tag::Table(_) | Tag::HtmlBlock => {
                self.flush(false);
                self.open_ignored_blocks += 1;
            }
            Tag::Paragraph | Tag::Item | Tag::List(_) | Tag::Heading { .. } => self.flush(false),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Link | TagEnd::Image => {
                self.open_links.pop();
            }
            TagEnd::CodeBlock | TagEnd::Table | TagEnd::HtmlBlock => {
                self.open_ignored_blocks -= 1;
                self.text.clear();
            }
            TagEnd::Heading(level) => self.heading(level),
            TagEnd::Paragraph | TagEnd::Item | TagEnd::List(_) => self.flush(false),
            _ => {}
        }
    }

    fn add(&mut self, text: &str, at: usize) {
        if let Some(link) = self.open_links.last() {
            self.links[*link].text += text;
        }
        if self.open_ignored_blocks == 0 {
            if self.text.trim().is_empty() {
                self.line = self.line_of(at);
            }
            self.text += text;
        }
    }

    fn heading(&mut self, _: HeadingLevel) {
        let name = anchor(&self.text);
        let times = self.times_used.entry(name.clone()).or_default();
        let unique = match *times {
            0 => name,
            times => format!("{name}-{times}"),
        };
        *times += 1;
        self.anchors.insert(unique);
        self.flush(true);
    }

    fn flush(&mut self, is_heading: bool) {
        let text = std::mem::take(&mut self.text);
        if !text.trim().is_empty() {
            self.passages.push(Passage {
                line: self.line,
                is_heading,
                text,
            });
        }
    }

    fn line_of(&self, at: usize) -> usize {
        let before = self.source.as_bytes().iter().take(at);
        1 + before.filter(|byte| **byte == b'\n').count()
    }
}

/// Joins inline code into one word.
fn one_word(code: &str) -> String {
    let words: Vec<_> = code.split_whitespace().collect();
    format!("`{}`", words.join("_"))
}

/// Returns the anchor of a heading, as code forges and mdBook generate it.
fn anchor(heading: &str) -> String {
    let letter = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    };
    let lower = heading.trim().to_lowercase();
    lower.chars().filter_map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let text = "# One, two\n\nSee `a b` in [the\npage](x.md#y).\n\n```\nno prose\n```\n\n| a |\n|---|\n| [b](c) |\n\n- item\n\n# One two\n";
        let page = Page::parse("docs/a.md".into(), text);
        let passages: Vec<_> = page.passages.iter().map(|p| (p.line, &*p.text)).collect();
        let expected = [
            (1, "One, two"),
            (3, "See `a_b` in the page."),
            (14, "item"),
            (16, "One two"),
        ];
        assert_eq!(passages, expected);
        let links: Vec<_> = page.links.iter().map(|l| (l.line, &*l.target)).collect();
        assert_eq!(links, [(3, "x.md#y"), (12, "c")]);
        assert_eq!(page.links[0].text, "the page");
        assert!(page.anchors.contains("one-two") && page.anchors.contains("one-two-1"));
    }
}
