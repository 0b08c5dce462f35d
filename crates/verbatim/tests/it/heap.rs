//! Heap memory that a program registers: its pages become pages of a file, so that peers can map
//! them.

use crate::program::Program;

#[test]
fn the_heap_is_shared_in_programs_of_both_models() {
    for flags in [["-fPIE", "-pie"], ["-fno-pie", "-no-pie"]] {
        let ran = Program::of_the_tests_with("heap", &flags).run(&[], &[]);
        ran.printed(&["shared"]);
    }
}

#[test]
fn the_heap_of_another_allocator_stays_private() {
    let flags = ["-DOWN_ALLOCATOR", "-rdynamic"];
    Program::of_the_tests_with("heap", &flags)
        .run(&[], &[])
        .printed(&["private"]);
}
