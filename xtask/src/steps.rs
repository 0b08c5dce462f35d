//! The steps of `cargo xtask test`, in the order in which they run.

/// How a step is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By its exit status: one check.
    Lint,
    /// By the tests that it ran: none is a failure.
    Tests,
}

/// One command of the chore.
#[derive(Debug)]
pub(crate) struct Step {
    /// For `--only`.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) kind: Kind,
    /// Arguments of cargo; `{target}` is the build folder.
    pub(crate) args: &'static [&'static str],
    /// Added to the environment; added behind what the caller has set for the `…FLAGS`.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Whether the programs run in the virtual machine with the kernel's Soft-RoCE.
    pub(crate) rxe: bool,
    /// A build folder of its own below `target/`, for flags that would rebuild everything else.
    pub(crate) target: Option<&'static str>,
}

/// The step that builds what all test steps run. Cargo chooses the features of a dependency for the packages that are
/// selected, so each step that runs tests selects the workspace: for one package, half of it would be built again.
pub(crate) const BUILD: &str = "build";

/// Every step.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "format",
        kind: Kind::Lint,
        args: &["fmt", "--all", "--check"],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "modules",
        what: "no circles of imports, no upward ones",
        kind: Kind::Lint,
        args: &["xtask", "modules"],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "clippy",
        what: "lints",
        kind: Kind::Lint,
        args: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "doc",
        what: "documentation",
        kind: Kind::Lint,
        args: &["doc", "--workspace", "--no-deps"],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        rxe: false,
        target: None,
    },
    Step {
        name: BUILD,
        what: "all programs, libraries and tests",
        kind: Kind::Lint,
        args: &["build", "--workspace", "--all-targets"],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "test",
        what: "unit and integration tests",
        kind: Kind::Tests,
        args: &[
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
        ],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "doctest",
        what: "examples in the documentation",
        kind: Kind::Tests,
        args: &["test", "--workspace", "--no-fail-fast", "--doc"],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "private-memory",
        what: "verbs semantics between processes that cannot map each other's memory",
        kind: Kind::Tests,
        args: &["test", "--workspace", "--test", "softnic", "processes"],
        env: &[("VERBATIM_KEEP_PRIVATE", "1")],
        rxe: false,
        target: None,
    },
    Step {
        name: "loom",
        what: "every interleaving of the shared-memory rings",
        kind: Kind::Tests,
        args: &["test", "-p", "shm", "--release", "--lib", "loom"],
        env: &[("RUSTFLAGS", "--cfg loom")],
        rxe: false,
        target: Some("loom"),
    },
    Step {
        name: "programs",
        what: "other people's programs on the drop-in, both link layers, as recorded",
        kind: Kind::Tests,
        args: &[
            "xtask",
            "conformance",
            "--check",
            "--verbatim={target}/debug/verbatim",
        ],
        env: &[],
        rxe: false,
        target: None,
    },
    Step {
        name: "rxe-verbs",
        what: "verbs semantics on the kernel's Soft-RoCE",
        kind: Kind::Tests,
        args: &["test", "--workspace", "--no-fail-fast", "--test", "system"],
        env: RXE_SUITE,
        rxe: true,
        target: None,
    },
    Step {
        name: "rxe-systems",
        what: "the systems on the kernel's Soft-RoCE",
        kind: Kind::Tests,
        args: &[
            "test",
            "--workspace",
            "--no-fail-fast",
            "--test",
            "device",
            "--",
            "--ignored",
            "--test-threads=1",
        ],
        env: RXE_DEVICE,
        rxe: true,
        target: None,
    },
    Step {
        name: "rxe-programs",
        what: "other people's programs on the kernel's Soft-RoCE, as recorded",
        kind: Kind::Tests,
        // Boots the machine itself.
        args: &["xtask", "conformance", "--on", "rxe", "--check"],
        env: &[],
        rxe: false,
        target: None,
    },
];

/// As [`RXE_DEVICE`], without verbs whose deviations on Soft-RoCE are not recorded yet.
const RXE_SUITE: &[(&str, &str)] = &[
    ("VERBATIM_TEST_DEVICE", "rxe0"),
    ("VERBATIM_TEST_GID_INDEX", "1"),
    (
        "VERBATIM_TEST_WITHOUT",
        "implicit-odp,moderation,multicast,null-mr,raw-packets,tags,windows,xrc",
    ),
];

/// Tells tests of the provider `system` which device to use.
const RXE_DEVICE: &[(&str, &str)] = &[
    ("VERBATIM_TEST_DEVICE", "rxe0"),
    ("VERBATIM_TEST_GID_INDEX", "1"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_words() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
        assert!(names.iter().all(|name| !name.contains(' ')));
    }

    #[test]
    fn test_steps_run_to_their_end() {
        for step in STEPS.iter().filter(|step| step.kind == Kind::Tests) {
            assert!(
                step.args[0] == "xtask"
                    || step.args.contains(&"--no-fail-fast")
                    || step.args.contains(&"--test")
                    || step.args.contains(&"-p"),
                "{} would stop at the first failing program",
                step.name
            );
        }
    }
}
