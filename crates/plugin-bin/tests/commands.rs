//! The commands as a person uses them: command line, output and exit code.
//!
//! `TRYCMD=overwrite cargo test --test commands` updates the expected output. Review the diff before you commit it.

#[test]
fn commands_print_what_the_cases_and_the_docs_show() {
    trycmd::TestCases::new()
        .case("tests/commands/*.md")
        .case("tests/commands/*.toml")
        .case("../../docs/commands.md")
        .case("../../docs/quick-start.md");
}
