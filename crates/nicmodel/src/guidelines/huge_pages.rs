use super::guideline::{Finding, Guideline};
use crate::op_profile::OperationProfile;
use crate::profile::Profile;

/// Guideline: register memory in huge pages.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "huge-pages",
    section: "ATC'16, section 3.5",
    rule: "The NIC caches address translations: memory in pages of 2 MiB needs 512 times fewer.",
    find_violation: detect_violation,
    program_after_change: |_, _| None,
};

/// Least registered memory in small pages that is reported: 16384 translations.
const MIN_REPORTED_BYTES: u64 = 64 << 20;

fn detect_violation(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let memory = &observed.memory;
    let small = memory
        .max_registered_bytes
        .saturating_sub(memory.huge_page_bytes);
    (small >= MIN_REPORTED_BYTES).then(|| Finding {
        observed_violation: format!(
            "{} MiB of registered memory are in pages of 4 KiB",
            small >> 20
        ),
        advice: "allocate it by mmap with MAP_HUGETLB (or shmget with SHM_HUGETLB) before \
                 ibv_reg_mr"
            .to_owned(),
    })
}
