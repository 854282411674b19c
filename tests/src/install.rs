//! An installation as an administrator makes it: a released file, rendered manifests, and the Pods that a kubelet runs of them.

mod download;
pub(crate) mod kustomize;
mod pod;
mod volume;

pub use download::Download;
pub use kustomize::render;
