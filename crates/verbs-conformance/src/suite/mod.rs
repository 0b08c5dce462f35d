//! The tests of the suite, one file for each kind of object or verb.

use crate::test_env::SuiteTest;

/// Declares tests, each with the capabilities that it needs.
///
/// `name [NicCapability, …],` runs the function `name`; `name [NicCapability, …] => |env| expression,` runs the expression.
macro_rules! tests {
    ($module:literal; $( $name:ident [$($cap:ident),*] $(=> $run:expr)?, )*) => {
        pub(super) const TESTS: &[$crate::SuiteTest] = &[$(
            $crate::SuiteTest {
                name: concat!($module, "::", stringify!($name)),
                needed_capabilities: &[$($crate::NicCapability::$cap),*],
                run: |env| tests!(@run env $name $($run)?).into(),
            },
        )*];
    };
    (@run $env:ident $name:ident) => { $name($env) };
    (@run $env:ident $name:ident $run:expr) => {{
        let run: fn(&$crate::TestEnv) = $run;
        run($env)
    }};
}

/// Declares the modules with tests.
macro_rules! suites {
    ($( $module:ident, )*) => {
        $( mod $module; )*
        const SUITES: &[&[SuiteTest]] = &[$( $module::TESTS ),*];
    };
}

suites! {
    access,
    ah,
    atomics,
    cq,
    data,
    device,
    events,
    flags,
    flush,
    mr,
    multicast,
    order,
    overrun,
    pd,
    processes,
    queues,
    raw,
    rnr,
    qp,
    refusals,
    srq,
    state,
    tags,
    threads,
    ud,
    windows,
    xrc,
}

/// Returns every test of the suite.
pub fn tests() -> impl Iterator<Item = &'static SuiteTest> {
    SUITES.iter().copied().flatten()
}

#[cfg(test)]
mod unit {
    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = super::tests().map(|test| test.name).collect();
        assert!(names.len() > 150, "only {} tests", names.len());
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
