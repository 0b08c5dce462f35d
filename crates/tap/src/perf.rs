//! Parsing of the counts that perf(1) writes.

use crate::PcieLines;

impl PcieLines {
    /// Sums the lines `VALUE,UNIT,EVENT,…` of perf (perf-stat(1), "CSV FORMAT") for two events. The first
    /// event counts cache lines that devices read, the second those that devices wrote. Returns `None` if an
    /// event has no value.
    #[must_use]
    pub fn from_perf(text: &str, events: [&str; 2]) -> Option<Self> {
        let [read, write] = events;
        Some(Self {
            rd_cur: sum_event_lines(text, read)?,
            itom: sum_event_lines(text, write)?,
        })
    }
}

fn sum_event_lines(text: &str, event: &str) -> Option<u64> {
    let mut all: Option<u64> = None;
    for line in text.lines() {
        let mut fields = line.split(',');
        let (value, name) = (fields.next()?, fields.nth(1));
        if name.is_some_and(|name| name.contains(event)) {
            all = Some(all.unwrap_or(0).saturating_add(value.parse().ok()?));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [&str; 2] = [
        "unc_cha_tor_inserts.io_pcirdcur",
        "unc_cha_tor_inserts.io_itom",
    ];

    #[test]
    fn perfs_lines_are_summed() {
        let text = "# started on Mon\n\n1200,,unc_cha_tor_inserts.io_pcirdcur,100,100.00,,\n\
                    34,,unc_cha_tor_inserts.io_itom,100,100.00,,\n6,,unc_cha_tor_inserts.io_itom,100,100.00,,\n";
        let lines = PcieLines {
            rd_cur: 1200,
            itom: 40,
        };
        assert_eq!(PcieLines::from_perf(text, EVENTS), Some(lines));
        let others = ["llc_references.pcie_read", "llc_references.pcie_write"];
        assert_eq!(PcieLines::from_perf(text, others), None);
        let not = text.replace("1200", "<not supported>");
        assert_eq!(PcieLines::from_perf(&not, EVENTS), None);
    }
}
