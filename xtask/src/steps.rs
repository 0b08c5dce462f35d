//! The steps of `cargo xtask test` and `cargo xtask check`.

/// The criterion by which a step passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The step passes if its command exits with status 0; the step counts as one check.
    Lint,
    /// The step passes if its tests pass; a step that runs no test fails.
    Tests,
}

/// The group of steps with which a step runs, and the time at which the group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepGroup {
    /// The step runs before all other groups, one step at a time. Such steps use every processor,
    /// or build programs that other steps need.
    First,
    /// The step runs on this machine after the first group, one step at a time, beside the virtual
    /// machine.
    ThisMachine,
    /// The step runs in the virtual machine, which keeps one processor busy.
    VirtualMachine,
    /// The step builds in its own folder, and runs in turn with the steps on this machine.
    OwnBuildFolder,
}

impl StepGroup {
    /// The groups of steps that run at the same time; groups of one entry share a thread. The tests in the virtual
    /// machine have time limits, so only one other step runs beside it.
    pub(crate) const CONCURRENT: [&[StepGroup]; 2] = [
        &[StepGroup::ThisMachine, StepGroup::OwnBuildFolder],
        &[StepGroup::VirtualMachine],
    ];
}

/// A command of `cargo xtask test` or `cargo xtask check`.
#[derive(Debug)]
pub(crate) struct Step {
    /// The name of the step for `--only`.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) kind: Kind,
    pub(crate) lane: StepGroup,
    /// Arguments of cargo; `{target}` stands for the build folder.
    pub(crate) args: &'static [&'static str],
    /// Environment variables of the step; a value of `…FLAGS` is appended to the caller's value.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// True if the step's programs run in the virtual machine with the kernel's Soft-RoCE.
    pub(crate) runs_programs_in_rxe_vm: bool,
    /// A separate build folder below `target/`, for flags that would rebuild everything else.
    pub(crate) own_build_folder: Option<&'static str>,
}

/// The step that builds the programs of all test steps. Cargo chooses the features of a dependency
/// for the selected packages. Each test step therefore selects the workspace: selecting one package
/// would rebuild half of the workspace.
pub(crate) const BUILD: &str = "build";

/// Every step of `cargo xtask test`, in the order of its table.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "format",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &["fmt", "--all", "--check"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "modules",
        what: "no circles of imports, no upward ones",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &["xtask", "modules"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "book",
        what: "the book of docs/, its links and its prose",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &["xtask", "book"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "clippy",
        what: "lints",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "doc",
        what: "documentation",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: BUILD,
        what: "all programs, libraries and tests",
        kind: Kind::Lint,
        lane: StepGroup::First,
        args: &["build", "--workspace", "--all-targets"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "test",
        what: "unit and integration tests",
        kind: Kind::Tests,
        lane: StepGroup::ThisMachine,
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
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "doctest",
        what: "examples in the documentation",
        kind: Kind::Tests,
        lane: StepGroup::ThisMachine,
        args: &["test", "--workspace", "--no-fail-fast", "--doc"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "private-memory",
        what: "verbs semantics between processes that cannot map each other's memory",
        kind: Kind::Tests,
        lane: StepGroup::ThisMachine,
        args: &["test", "--workspace", "--test", "softnic", "processes"],
        env: &[("VERBATIM_KEEP_PRIVATE", "1")],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "publish",
        what: "the packages of the crates for other projects, each built from what a registry would have",
        kind: Kind::Lint,
        lane: StepGroup::OwnBuildFolder,
        args: &["xtask", "publish"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        // The command builds the packages in a folder of its own.
        own_build_folder: None,
    },
    Step {
        name: "features",
        what: "lints and documentation of the crates for other projects, with each feature alone",
        kind: Kind::Lint,
        lane: StepGroup::OwnBuildFolder,
        args: &["xtask", "features"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        // The command builds in a folder of its own.
        own_build_folder: None,
    },
    Step {
        name: "loom",
        what: "every interleaving of the shared-memory rings",
        kind: Kind::Tests,
        lane: StepGroup::OwnBuildFolder,
        args: &["test", "-p", "verbatim-shm", "--release", "--lib", "loom"],
        // The step builds all its programs itself, with settings for fast builds.
        env: &[
            ("RUSTFLAGS", "--cfg loom"),
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ],
        runs_programs_in_rxe_vm: false,
        own_build_folder: Some("loom"),
    },
    Step {
        name: "programs",
        what: "programs and suites of other projects on the drop-in, both link layers, as recorded",
        kind: Kind::Tests,
        lane: StepGroup::ThisMachine,
        args: &[
            "xtask",
            "conformance",
            "--check",
            "--verbatim={target}/debug/verbatim",
        ],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "python",
        what: "the Python wheel in a fresh virtual environment",
        kind: Kind::Tests,
        lane: StepGroup::ThisMachine,
        args: &["xtask", "python"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "rxe-verbs",
        what: "verbs semantics on the kernel's Soft-RoCE",
        kind: Kind::Tests,
        lane: StepGroup::VirtualMachine,
        args: &["test", "--workspace", "--no-fail-fast", "--test", "system"],
        env: RXE_SUITE_ENV,
        runs_programs_in_rxe_vm: true,
        own_build_folder: None,
    },
    Step {
        name: "rxe-suite",
        what: "verbs semantics between the software NIC and the kernel's Soft-RoCE over a cable",
        kind: Kind::Tests,
        lane: StepGroup::VirtualMachine,
        // The command itself boots the virtual machine.
        args: &[
            "xtask",
            "rxe",
            "--limit",
            "1800",
            "--",
            "sh",
            "conformance/programs/suite.sh",
            "{target}/debug/verbs-conformance",
        ],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "rxe-systems",
        what: "the systems on the kernel's Soft-RoCE",
        kind: Kind::Tests,
        lane: StepGroup::VirtualMachine,
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
        env: RXE_DEVICE_ENV,
        runs_programs_in_rxe_vm: true,
        own_build_folder: None,
    },
    Step {
        name: "rxe-programs",
        what: "programs and suites of other projects on the kernel's Soft-RoCE, as recorded",
        kind: Kind::Tests,
        lane: StepGroup::VirtualMachine,
        // The command itself boots the virtual machine.
        args: &[
            "xtask",
            "conformance",
            "--on",
            "rxe",
            "--check",
            "--sample-if-unchanged",
        ],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "rxe-wire",
        what: "the drop-in and the state machines of RC to the kernel's Soft-RoCE over a cable, whole and with loss, as recorded",
        kind: Kind::Tests,
        lane: StepGroup::VirtualMachine,
        // The command itself boots the virtual machines.
        args: &[
            "xtask",
            "conformance",
            "--on",
            "wire-machines",
            "--on",
            "wire-machines-loss",
            "--on",
            "wire-client",
            "--on",
            "wire-client-loss",
            "--on",
            "wire-server",
            "--on",
            "wire-server-loss",
            "--check",
            "--verbatim={target}/debug/verbatim",
        ],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
];

/// The steps of `cargo xtask test` that `cargo xtask check` also runs.
pub(crate) const STEPS_SHARED_WITH_CHECK: &[&str] = &["fmt", "clippy"];

/// The tests that `cargo xtask check` runs.
pub(crate) const CHECK_STEPS: &[Step] = &[
    Step {
        name: "unit",
        what: "unit tests",
        kind: Kind::Tests,
        lane: StepGroup::First,
        args: &["test", "--workspace", "--no-fail-fast", "--lib", "--bins"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
    Step {
        name: "suite",
        what: "verbs semantics on the software NIC, its port as RoCE",
        kind: Kind::Tests,
        lane: StepGroup::First,
        args: &["test", "--workspace", "--test", "softnic", "roce::"],
        env: &[],
        runs_programs_in_rxe_vm: false,
        own_build_folder: None,
    },
];

/// [`RXE_DEVICE_ENV`], without verbs whose deviations on Soft-RoCE are not recorded yet.
const RXE_SUITE_ENV: &[(&str, &str)] = &[
    ("VERBATIM_TEST_DEVICE", "rxe0"),
    ("VERBATIM_TEST_GID_INDEX", "1"),
    (
        "VERBATIM_TEST_WITHOUT",
        "implicit-odp,moderation,multicast,null-mr,raw-packets,tags,xrc",
    ),
    // The emulated machine is slow beside other work.
    ("VERBATIM_TEST_SECOND_RUNS", "4"),
];

/// Environment variables that select the device for tests of the provider `system`.
const RXE_DEVICE_ENV: &[(&str, &str)] = &[
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
    fn what_is_built_is_built_before_the_lanes() {
        let build = STEPS.iter().position(|step| step.name == BUILD);
        let beside = STEPS.iter().position(|step| step.lane != StepGroup::First);
        assert!(build < beside);
        let first = |step: &Step| step.lane == StepGroup::First;
        assert!(STEPS.is_sorted_by_key(|step| !first(step)));
        // cargo locks its build folder, so lanes with a common folder would wait for each other. A
        // chore chooses its folder itself.
        for step in STEPS {
            let is_chore = step.args[0] == "xtask";
            let is_apart = step.lane == StepGroup::OwnBuildFolder;
            assert!(is_apart || step.own_build_folder.is_none(), "{}", step.name);
            assert!(
                !is_apart || step.own_build_folder.is_some() || is_chore,
                "{}",
                step.name
            );
        }
        for name in STEPS_SHARED_WITH_CHECK {
            assert!(STEPS.iter().any(|step| step.name == *name), "{name}");
        }
    }

    #[test]
    fn test_steps_run_to_their_end() {
        let steps = STEPS.iter().chain(CHECK_STEPS);
        for step in steps.filter(|step| step.kind == Kind::Tests) {
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
