//! Prints the CustomResourceDefinitions as YAML, for `kubectl apply -f` in a cluster without Gloo.

#![allow(clippy::print_stdout, reason = "it prints the definitions")]

use gloo_types::crd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for definition in [crd::route_table(), crd::mirror_policy()] {
        print!("---\n{}", serde_saphyr::to_string(&definition)?);
    }
    Ok(())
}
