//! Published numbers for comparison with the model.
//!
//! `ATC16` is the paper by Kalia, Kaminsky and Andersen, Design Guidelines for High Performance RDMA Systems, USENIX
//! ATC 2016. `slides` are its slides. `DPU study` is a study of BlueField-2 for remote B-trees and sequencers.
//! `rdma_bench` is the benchmark that the authors of `ATC16` published, with rates that the paper does not have. Ids
//! that begin with `derived_` are not printed; they follow from printed numbers.

use std::sync::LazyLock;

use serde::Serialize;

/// One published number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedNumber {
    /// Id of the number.
    pub id: &'static str,
    /// The cluster or NIC: `CX`, `CX3`, `CIB`, `BF2`, a link generation, `all` or `any`.
    pub nic: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit; `Mops`, `Mrps` and `M/s` are all 10^6 a second.
    pub unit: &'static str,
    /// The publication, and the place in it.
    #[serde(rename = "where")]
    pub place_in_publication: &'static str,
}

static PUBLISHED_NUMBERS: LazyLock<Vec<PublishedNumber>> = LazyLock::new(|| {
    let lines = include_str!("../data/published.csv").lines().skip(1);
    lines.filter_map(parse).collect()
});

fn parse(line: &'static str) -> Option<PublishedNumber> {
    let mut fields = line.split(',');
    Some(PublishedNumber {
        id: fields.next()?,
        nic: fields.next()?,
        value: fields.next()?.parse().ok()?,
        unit: fields.next()?,
        place_in_publication: fields.next()?,
    })
}

/// Returns every published number of the table.
pub fn all_published_numbers() -> &'static [PublishedNumber] {
    &PUBLISHED_NUMBERS
}

/// Returns the published number with this id.
pub fn published_number_by_id(id: &str) -> Option<&'static PublishedNumber> {
    PUBLISHED_NUMBERS
        .iter()
        .find(|published| published.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_every_name_is_one() {
        let lines = include_str!("../data/published.csv").lines().count();
        assert_eq!(all_published_numbers().len(), lines - 1);
        for published in all_published_numbers() {
            assert_eq!(published_number_by_id(published.id), Some(published));
            assert!(published.value.is_finite(), "{}", published.id);
            assert!(
                !published.place_in_publication.is_empty(),
                "{}",
                published.id
            );
        }
    }
}
