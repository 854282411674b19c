//! The types of `tests/data/generate.go` and of Go's net/rpc, declared in Rust.

use std::collections::BTreeMap;

use gob::{Bytes, GobType, Schema, SchemaRef, Time, gob_interface, gob_struct};
use serde::{Deserialize, Serialize};

gob_struct! {
    #[derive(Eq)]
    pub(crate) struct Request as "Request" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
    }

    pub(crate) struct Response as "Response" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
        pub(crate) error: String as "Error",
    }

    pub(crate) struct RpcError as "RpcError" {
        pub(crate) error_string: String as "ErrorString",
    }

    pub(crate) struct VerifyWeightResponse as "VerifyWeightResponse" {
        pub(crate) verified: i32 as "Verified",
        pub(crate) err: RpcError as "Err",
    }
}

gob_struct! {
    pub(crate) struct SetWeightArgs as "SetWeightAndVerifyWeightArgs" {
        pub(crate) rollout: Rollout as "Rollout",
        pub(crate) desired_weight: i32 as "DesiredWeight",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct UpdateHashArgs as "UpdateHashArgs" {
        pub(crate) rollout: Rollout as "Rollout",
        pub(crate) canary_hash: String as "CanaryHash",
        pub(crate) stable_hash: String as "StableHash",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct Rollout as "Rollout" {
        pub(crate) object_meta: ObjectMeta as "ObjectMeta",
        pub(crate) spec: RolloutSpec as "Spec",
    }

    pub(crate) struct ObjectMeta as "ObjectMeta" {
        pub(crate) name: String as "Name",
        pub(crate) creation_timestamp: Time as "CreationTimestamp",
    }

    pub(crate) struct RolloutSpec as "RolloutSpec" {
        pub(crate) replicas: Option<i32> as "Replicas",
        pub(crate) paused: bool as "Paused",
        pub(crate) restart_at: Option<Time> as "RestartAt",
        pub(crate) steps: Vec<CanaryStep> as "Steps",
        pub(crate) traffic_routing: Option<TrafficRouting> as "TrafficRouting",
    }

    pub(crate) struct CanaryStep as "CanaryStep" {
        pub(crate) set_weight: Option<i32> as "SetWeight",
        pub(crate) pause: Option<RolloutPause> as "Pause",
    }

    pub(crate) struct RolloutPause as "RolloutPause" {
        pub(crate) duration: Option<i32> as "Duration",
    }

    pub(crate) struct TrafficRouting as "RolloutTrafficRouting" {
        pub(crate) plugins: BTreeMap<String, Bytes> as "Plugins",
        pub(crate) max_traffic_weight: Option<i32> as "MaxTrafficWeight",
    }

    pub(crate) struct WeightDestination as "WeightDestination" {
        pub(crate) weight: i32 as "Weight",
        pub(crate) service_name: String as "ServiceName",
        pub(crate) pod_template_hash: String as "PodTemplateHash",
    }
}

gob_interface! {
    pub(crate) enum Argument {
        SetWeight(SetWeightArgs) as "SetWeightAndVerifyWeightArgs",
        UpdateHash(UpdateHashArgs) as "UpdateHashArgs",
    }
}

/// The Rollout of the examples in `vectors`, also in `session.gob`.
pub(crate) fn demo() -> Rollout {
    let step = |set_weight, pause| CanaryStep { set_weight, pause };
    Rollout {
        object_meta: ObjectMeta {
            name: "demo".into(),
            creation_timestamp: Time::from_unix(1_714_979_289),
        },
        spec: RolloutSpec {
            replicas: Some(5),
            // The last step is `setWeight: 0`, and gob omits a zero even behind a pointer.
            steps: vec![
                step(Some(20), None),
                step(None, Some(RolloutPause::default())),
                step(None, None),
            ],
            traffic_routing: Some(TrafficRouting {
                plugins: BTreeMap::from([("ns/p".into(), Bytes(br#"{"a":1}"#.to_vec()))]),
                max_traffic_weight: None,
            }),
            ..RolloutSpec::default()
        },
    }
}

/// The additional destinations of the second call in the examples in `vectors`.
pub(crate) fn destinations() -> Vec<WeightDestination> {
    let five = WeightDestination {
        weight: 5,
        service_name: "s".into(),
        ..WeightDestination::default()
    };
    vec![WeightDestination::default(), five]
}

gob_struct! {
    pub(crate) struct Inner as "Inner" {
        pub(crate) x: i64 as "X",
    }

    pub(crate) struct Zeros as "Zeros" {
        pub(crate) map_of_zero: Option<BTreeMap<String, i64>> as "MapOfZero",
        pub(crate) empty_map: Option<BTreeMap<String, i64>> as "EmptyMap",
        pub(crate) nil_map: Option<BTreeMap<String, i64>> as "NilMap",
        pub(crate) two_zeros: Option<Vec<i64>> as "TwoZeros",
        pub(crate) empty_slice: Option<Vec<i64>> as "EmptySlice",
        pub(crate) two_structs: Option<Vec<Inner>> as "TwoStructs",
        pub(crate) empty_bytes: Option<Bytes> as "EmptyBytes",
        pub(crate) number: i64 as "Number",
        pub(crate) fraction: f64 as "Fraction",
        pub(crate) imaginary: (f64, f64) as "Imaginary",
        pub(crate) inner: Inner as "Struct",
        pub(crate) array: [i64; 2] as "Array",
        pub(crate) time: Time as "Time",
        pub(crate) nil: Option<Any> as "Nil",
        pub(crate) ptr_number: Option<i32> as "PtrNumber",
        pub(crate) ptr_bool: Option<bool> as "PtrBool",
        pub(crate) ptr_string: Option<String> as "PtrString",
        pub(crate) ptr_slice: Option<Vec<i64>> as "PtrSlice",
        pub(crate) ptr_struct: Option<Inner> as "PtrStruct",
        pub(crate) ptr_time: Option<Time> as "PtrTime",
        pub(crate) ptr_map: Option<BTreeMap<String, i64>> as "PtrMap",
        pub(crate) last: String as "Last",
    }

    pub(crate) struct Kinds as "Kinds" {
        pub(crate) yes: bool as "Yes",
        pub(crate) small: i8 as "Small",
        pub(crate) middle: i16 as "Middle",
        pub(crate) large: i32 as "Large",
        pub(crate) min: i64 as "Min",
        pub(crate) max: i64 as "Max",
        pub(crate) short: u16 as "Short",
        pub(crate) word: u32 as "Word",
        pub(crate) huge: u64 as "Huge",
        pub(crate) single: f32 as "Single",
        pub(crate) double: f64 as "Double",
        pub(crate) infinite: f64 as "Infinite",
        pub(crate) complex: (f64, f64) as "Complex",
        pub(crate) text: String as "Text",
        pub(crate) raw: Bytes as "Raw",
        pub(crate) array: [i16; 3] as "Array",
        pub(crate) matrix: Vec<Vec<f64>> as "Matrix",
        pub(crate) map: BTreeMap<i64, String> as "Map",
        pub(crate) nested: BTreeMap<String, Vec<BTreeMap<String, bool>>> as "Nested",
        pub(crate) pointer: Option<i32> as "Pointer",
        pub(crate) anonymous: Anonymous as "Anonymous",
        pub(crate) empty: () as "Empty",
    }

    pub(crate) struct Anonymous as "" {
        pub(crate) x: u64 as "X",
    }
}

gob_struct! {
    pub(crate) struct Container as "Box" {
        pub(crate) before: i64 as "Before",
        pub(crate) value: Option<Any> as "Value",
        pub(crate) after: String as "After",
        pub(crate) list: Vec<Option<Any>> as "List",
        pub(crate) map: BTreeMap<String, Option<Any>> as "Map",
    }

    pub(crate) struct Leaf as "Leaf" {
        pub(crate) n: i64 as "N",
        pub(crate) inner: Option<Box<Any>> as "Inner",
    }

    pub(crate) struct Other as "Other" {
        pub(crate) text: String as "Text",
        pub(crate) deep: Vec<Option<Any>> as "Deep",
    }
}

gob_interface! {
    pub(crate) enum Any {
        Leaf(Leaf) as "Leaf",
        Other(Other) as "Other",
        Numbers(Vec<i64>) as "Numbers",
        Flags(BTreeMap<String, bool>) as "Flags",
        Int(i64) as "int",
        Text(String) as "string",
    }
}

gob_struct! {
    pub(crate) struct Tree as "Tree" {
        pub(crate) name: String as "Name",
        pub(crate) children: Vec<Tree> as "Children",
        pub(crate) next: Option<Box<Tree>> as "Next",
    }

    pub(crate) struct Left as "Left" {
        pub(crate) right: Option<Box<Right>> as "Right",
    }

    pub(crate) struct Right as "Right" {
        pub(crate) lefts: Vec<Left> as "Lefts",
    }

    pub(crate) struct Strings as "Strings" {
        pub(crate) text: String as "Text",
        pub(crate) bytes: String as "Bytes",
    }
}

/// `type Nest []Nest`: a slice of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Nest(pub(crate) Vec<Self>);

impl GobType for Nest {
    fn describe(schema: &mut Schema) -> SchemaRef {
        Vec::<Self>::describe(schema)
    }
}

/// A type that implements `GobEncoder`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gobber(pub(crate) Bytes);

impl GobType for Gobber {
    fn describe(schema: &mut Schema) -> SchemaRef {
        schema.gob_encoder::<Self>("Gobber", b"gob:")
    }
}

gob_struct! {
    pub(crate) struct Opaque as "Opaque" {
        pub(crate) gob: Gobber as "Gob",
        pub(crate) binary: Option<Gobber> as "Binary",
        pub(crate) list: Vec<Gobber> as "List",
        pub(crate) times: Vec<Time> as "Times",
    }
}
