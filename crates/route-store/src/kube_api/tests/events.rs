//! The requests for Events.

use super::*;
use crate::event_sink::EventWriter as _;

#[tokio::test]
async fn events_are_those_of_the_core_group() {
    let (store, sent) = store(vec![(201, json!({})), (200, json!({}))]);
    let key = ObjectKey::new("shop", "reviews.1");
    let event = json!({"metadata": {"namespace": "shop", "name": "reviews.1"}});
    store.create_event(&key, &event).await.unwrap();
    store.patch_event(&key, &json!({"count": 2})).await.unwrap();
    let manager = format!("fieldManager={FIELD_MANAGER}");
    assert_eq!(
        lines(&sent),
        [
            format!("POST /api/v1/namespaces/shop/events?&{manager} {event}"),
            format!(r#"PATCH /api/v1/namespaces/shop/events/reviews.1?&{manager} {{"count":2}}"#),
        ]
    );
}
