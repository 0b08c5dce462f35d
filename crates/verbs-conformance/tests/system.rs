//! Runs the suite on the machine's own libibverbs.
//!
//! With `VERBATIM_TEST_DEVICE=rxe0` (and `VERBATIM_TEST_GID_INDEX`, if the index is not 0) the whole suite
//! runs on that device. `VERBATIM_TEST_WITHOUT=srq,sqd` excludes capabilities that the device lacks.
//! `VERBATIM_TEST_SECOND_RUNS=4` runs up to so many failed tests a second time, for an emulated machine. A
//! missing device is a failure. Known errors of a device (`Deviations`) are skipped with the reason. Without
//! `VERBATIM_TEST_DEVICE` only tests that need no device run.

use std::path::Path;
use std::process::ExitCode;

use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::objects::{device_names, status_event_node_and_port_texts};
use verbs_conformance::{
    NicCapability, ProviderKind, Settings, SuiteTest, TestEnv, TestOutcome, load_system, tests,
};

const WITHOUT_DEVICE: [SuiteTest; 3] = [
    SuiteTest {
        name: "system::loads_or_says_what_to_install",
        needed_capabilities: &[],
        run: loads,
    },
    SuiteTest {
        name: "system::lists_its_devices",
        needed_capabilities: &[],
        run: lists,
    },
    SuiteTest {
        name: "system::texts_are_those_of_softnic",
        needed_capabilities: &[],
        run: same_texts,
    },
];

fn main() -> ExitCode {
    let mut settings = Settings::new(ProviderKind::Softnic);
    let all: Vec<&'static SuiteTest> = WITHOUT_DEVICE.iter().chain(tests()).collect();
    if let Some(code) = harness::play_role_if_requested(&all) {
        return code;
    }
    let variable = |name| {
        std::env::var(name)
            .ok()
            .filter(|text: &String| !text.is_empty())
    };
    let chosen: Vec<&'static SuiteTest> = match variable("VERBATIM_TEST_DEVICE") {
        None => WITHOUT_DEVICE.iter().collect(),
        Some(device) => {
            settings = Settings::new(ProviderKind::System);
            settings.device = Some(device);
            if let Some(index) = variable("VERBATIM_TEST_GID_INDEX") {
                settings.gid_index = index
                    .parse()
                    .expect("VERBATIM_TEST_GID_INDEX is a small number");
            }
            for name in variable("VERBATIM_TEST_WITHOUT")
                .unwrap_or_default()
                .split(',')
            {
                if !name.is_empty() {
                    settings.excluded_capabilities.insert(
                        name.parse::<NicCapability>()
                            .expect("VERBATIM_TEST_WITHOUT"),
                    );
                }
            }
            tests().collect()
        }
    };
    let mut variant = SuiteVariant::system(settings);
    if let Some(count) = variable("VERBATIM_TEST_SECOND_RUNS") {
        variant.max_second_runs = count
            .parse()
            .expect("VERBATIM_TEST_SECOND_RUNS is a number");
    }
    harness::main(&chosen, &[variant])
}

fn loads(_: &TestEnv) -> TestOutcome {
    match load_system() {
        Ok(_) => {}
        Err(err) => {
            let text = format!("{err:#}");
            assert!(
                text.contains("libibverbs.so.1") && text.contains("apt install"),
                "{text}"
            );
        }
    }
    TestOutcome::Passed
}

fn lists(_: &TestEnv) -> TestOutcome {
    let Ok(symbols) = load_system() else {
        return TestOutcome::Skipped("there is no libibverbs".into());
    };
    match device_names(symbols) {
        Ok(names) => {
            // The kernel's list also has devices without a provider library.
            let of_kernel = harness::file_names_in_folder(Path::new("/sys/class/infiniband"));
            assert!(
                names.iter().all(|name| of_kernel.contains(name)),
                "{names:?} of {of_kernel:?}"
            );
        }
        // The kernel has no RDMA support.
        Err(errno) => assert!(
            [libc::ENOSYS, libc::ENOENT, libc::EPERM].contains(&errno),
            "errno {errno}"
        ),
    }
    TestOutcome::Passed
}

fn same_texts(_: &TestEnv) -> TestOutcome {
    let Ok(symbols) = load_system() else {
        return TestOutcome::Skipped("there is no libibverbs".into());
    };
    let softnic = ProviderKind::Softnic.symbols().expect("always there");
    assert_eq!(
        status_event_node_and_port_texts(softnic, 0..=64),
        status_event_node_and_port_texts(symbols, 0..=64)
    );
    assert_eq!(
        status_event_node_and_port_texts(softnic, u32::MAX - 3..=u32::MAX),
        status_event_node_and_port_texts(symbols, u32::MAX - 3..=u32::MAX)
    );
    TestOutcome::Passed
}
