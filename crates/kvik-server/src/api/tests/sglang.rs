//! Endpoints that routers query on a node.

use serde_json::{Value, json};

use super::{
    json_of,
    tenants::{ask, busy_server},
};

const TENANTS: &str = "[tenant.acme]\nKEY:acme;\n[tenant.beta]\nKEY:beta;\n";

#[tokio::test]
async fn a_router_learns_the_model_and_its_admin_the_load() {
    let server = busy_server(TENANTS);
    let get = async |key: &str, path: &str| json_of(ask(&server, key, "GET", path, Value::Null).await).await;
    for path in ["/model_info", "/get_model_info"] {
        let (status, model) = get("acme", path).await;
        assert_eq!((status.as_u16(), &model["model_path"]), (200, &json!("tiny")), "{model}");
    }
    for path in ["/server_info", "/get_server_info"] {
        let (_, node) = get("acme", path).await;
        assert_eq!(node["served_model_name"], "tiny", "{node}");
        assert!(node["max_total_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{node}");
    }
    let (status, load) = get("root", "/get_load").await;
    assert_eq!((status.as_u16(), load.as_array().unwrap().len()), (200, 1), "{load}");
    let expect = json!({"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 2, "num_tokens": 32});
    assert_eq!(load[0], expect, "without what is only cached, and what is computed behind answers");
    assert_eq!(get("acme", "/get_load").await.0.as_u16(), 403, "what runs is all tenants'");
}
