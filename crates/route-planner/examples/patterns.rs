//! Answers which patterns the plugin accepts, for the Go test in `tests/go/re2`.
//!
//! Each line of stdin is a pattern as a JSON string. Each line of stdout is its answer as a JSON string: why the pattern is
//! refused, or the empty string.

use std::error::Error;
use std::io::{self, BufRead as _, BufWriter, Write as _};

use route_planner::check_pattern;

fn main() -> Result<(), Box<dyn Error>> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let pattern: String = serde_json::from_str(&line?)?;
        let problem = check_pattern(&pattern).err().unwrap_or_default();
        writeln!(stdout, "{}", serde_json::to_string(&problem)?)?;
    }
    Ok(stdout.flush()?)
}
