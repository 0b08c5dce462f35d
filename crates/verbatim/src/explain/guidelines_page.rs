//! The book's page of the design guidelines, which has a section for each guideline.

use std::collections::BTreeSet;

use chart::escape;
use nicmodel::guidelines;
use pulldown_cmark::{Parser, html::push_html};

use super::report::Report;

const GUIDELINES_PAGE: &str = include_str!("../../../../docs/guidelines.md");

/// Returns the section of a guideline, without its heading, as Markdown.
pub(super) fn section_markdown(name: &str) -> Option<&'static str> {
    let mut sections = GUIDELINES_PAGE.split("\n## ").skip(1);
    sections.find_map(|section| Some(section.strip_prefix(name)?.strip_prefix('\n')?.trim()))
}

/// Returns the names of all guidelines.
pub(super) fn guideline_names() -> Vec<&'static str> {
    guidelines::ALL_GUIDELINES
        .iter()
        .map(|one| one.name)
        .collect()
}

/// Formats a line of advice as HTML; the guideline's name links to its section of the page.
pub(super) fn link_guideline_name(name: &str, line: &str) -> String {
    let link = format!("[<a href=\"#guideline-{name}\">{name}</a>,");
    escape(line).replacen(&format!("[{name},"), &link, 1)
}

/// Formats the sections of the guidelines that the report advises, as HTML.
pub(super) fn advised_sections_html(report: &Report) -> String {
    let advice = report.processes.iter().flat_map(|process| &process.advice);
    let advised: BTreeSet<_> = advice.map(|advice| advice.guideline).collect();
    let mut html = String::new();
    for name in guideline_names()
        .into_iter()
        .filter(|name| advised.contains(name))
    {
        let Some(section) = section_markdown(name) else {
            continue;
        };
        if html.is_empty() {
            html.push_str("<h2>The guidelines</h2>");
        }
        html.push_str(&format!("<h3 id=\"guideline-{name}\">{name}</h3>"));
        push_html(&mut html, Parser::new(section));
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guideline_has_its_section_in_the_book_and_no_other_is_there() {
        for name in guideline_names() {
            let section = section_markdown(name).expect(name);
            assert!(section.starts_with("**"), "{name}: {section}");
            assert!(section.contains("\n- "), "{name} says what to do");
        }
        let headings = GUIDELINES_PAGE
            .lines()
            .filter_map(|line| line.strip_prefix("## "));
        for heading in headings {
            assert!(guideline_names().contains(&heading), "{heading}");
        }
    }
}
