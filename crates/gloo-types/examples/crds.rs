//! Prints the CustomResourceDefinitions as YAML, for a cluster without Gloo: `kubectl apply -f` takes it.

#![allow(clippy::print_stdout, reason = "it prints them")]

use gloo_types::crd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for definition in [crd::route_table(), crd::mirror_policy()] {
        print!("---\n{}", serde_saphyr::to_string(&definition)?);
    }
    Ok(())
}
