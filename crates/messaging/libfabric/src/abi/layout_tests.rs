//! Compares sizes, offsets and constants with the headers of the installed libfabric, by means of a C compiler.
//!
//! Later versions add fields at the ends of structures, so only offsets and the sizes of 1.17 are compared.

use super::constants::*;
use super::*;
use std::fmt::Write;
use std::process::Command;

pub(crate) trait Layout {
    fn fields() -> Vec<(&'static str, usize)>;
}

fn compare<T: Layout>(source: &mut String, name: &str) {
    writeln!(
        source,
        "_Static_assert(!OLD || sizeof(struct {name}) == {}, \"size of {name}\");",
        size_of::<T>()
    )
    .unwrap();
    for (field, offset) in T::fields() {
        let field = field.trim_start_matches("r#");
        writeln!(source, "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");")
            .unwrap();
    }
}

fn program() -> String {
    let mut source = String::from(
        "#include <stddef.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
         #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_tagged.h>\n\
         #include <rdma/fi_rma.h>\n#include <rdma/fi_atomic.h>\n#include <rdma/fi_errno.h>\n\
         #include <rdma/providers/fi_prov.h>\n\
         #define OLD (FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION == 17)\n",
    );
    let out = &mut source;
    compare::<Context>(out, "fi_context");
    compare::<Provider>(out, "fi_provider");
    compare::<Fid>(out, "fid");
    compare::<FidFabric>(out, "fid_fabric");
    compare::<FidDomain>(out, "fid_domain");
    compare::<FidAv>(out, "fid_av");
    compare::<FidEq>(out, "fid_eq");
    compare::<FidCq>(out, "fid_cq");
    compare::<FidCntr>(out, "fid_cntr");
    compare::<FidMr>(out, "fid_mr");
    compare::<FidEp>(out, "fid_ep");
    compare::<FidPep>(out, "fid_pep");
    compare::<TxAttr>(out, "fi_tx_attr");
    compare::<RxAttr>(out, "fi_rx_attr");
    compare::<EpAttr>(out, "fi_ep_attr");
    compare::<DomainAttr>(out, "fi_domain_attr");
    compare::<FabricAttr>(out, "fi_fabric_attr");
    compare::<Info>(out, "fi_info");
    compare::<AvAttr>(out, "fi_av_attr");
    compare::<CqAttr>(out, "fi_cq_attr");
    compare::<CntrAttr>(out, "fi_cntr_attr");
    compare::<EqAttr>(out, "fi_eq_attr");
    compare::<MrAttr>(out, "fi_mr_attr");
    compare::<CqTaggedEntry>(out, "fi_cq_tagged_entry");
    compare::<CqErrEntry>(out, "fi_cq_err_entry");
    compare::<EqEntry>(out, "fi_eq_entry");
    compare::<EqCmEntry>(out, "fi_eq_cm_entry");
    compare::<EqErrEntry>(out, "fi_eq_err_entry");
    compare::<Msg>(out, "fi_msg");
    compare::<MsgTagged>(out, "fi_msg_tagged");
    compare::<RmaIov>(out, "fi_rma_iov");
    compare::<MsgRma>(out, "fi_msg_rma");
    compare::<Ioc>(out, "fi_ioc");
    compare::<RmaIoc>(out, "fi_rma_ioc");
    compare::<MsgAtomic>(out, "fi_msg_atomic");
    compare::<AtomicAttr>(out, "fi_atomic_attr");
    compare::<OpsFid>(out, "fi_ops");
    compare::<OpsFabric>(out, "fi_ops_fabric");
    compare::<OpsDomain>(out, "fi_ops_domain");
    compare::<OpsMr>(out, "fi_ops_mr");
    compare::<OpsAv>(out, "fi_ops_av");
    compare::<OpsEq>(out, "fi_ops_eq");
    compare::<OpsCq>(out, "fi_ops_cq");
    compare::<OpsCntr>(out, "fi_ops_cntr");
    compare::<OpsEp>(out, "fi_ops_ep");
    compare::<OpsCm>(out, "fi_ops_cm");
    compare::<OpsMsg>(out, "fi_ops_msg");
    compare::<OpsTagged>(out, "fi_ops_tagged");
    compare::<OpsRma>(out, "fi_ops_rma");
    compare::<OpsAtomic>(out, "fi_ops_atomic");
    for (name, value) in constants() {
        writeln!(out, "_Static_assert((unsigned long long)({name}) == {value}ull, \"{name}\");").unwrap();
    }
    source
}

fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("FI_MSG", MSG),
        ("FI_RMA", RMA),
        ("FI_TAGGED", TAGGED),
        ("FI_ATOMIC", ATOMIC),
        ("FI_READ", READ),
        ("FI_WRITE", WRITE),
        ("FI_RECV", RECV),
        ("FI_SEND", SEND),
        ("FI_REMOTE_READ", REMOTE_READ),
        ("FI_REMOTE_WRITE", REMOTE_WRITE),
        ("FI_MULTI_RECV", MULTI_RECV),
        ("FI_REMOTE_CQ_DATA", REMOTE_CQ_DATA),
        ("FI_MORE", MORE),
        ("FI_PEEK", PEEK),
        ("FI_FENCE", FENCE),
        ("FI_COMPLETION", COMPLETION),
        ("FI_INJECT", INJECT),
        ("FI_INJECT_COMPLETE", INJECT_COMPLETE),
        ("FI_TRANSMIT_COMPLETE", TRANSMIT_COMPLETE),
        ("FI_DELIVERY_COMPLETE", DELIVERY_COMPLETE),
        ("FI_MATCH_COMPLETE", MATCH_COMPLETE),
        ("FI_LOCAL_COMM", LOCAL_COMM),
        ("FI_REMOTE_COMM", REMOTE_COMM),
        ("FI_RMA_EVENT", RMA_EVENT),
        ("FI_SOURCE", SOURCE),
        ("FI_DIRECTED_RECV", DIRECTED_RECV),
        ("FI_CLAIM", CLAIM),
        ("FI_DISCARD", DISCARD),
        ("FI_SELECTIVE_COMPLETION", SELECTIVE_COMPLETION),
        ("FI_FORMAT_UNSPEC", FORMAT_UNSPEC.into()),
        ("FI_ADDR_STR", ADDR_STR.into()),
        ("FI_PROV_SPECIFIC", PROV_SPECIFIC.into()),
        ("FI_ADDR_UNSPEC", ADDR_UNSPEC),
        ("FI_AV_MAP", AV_MAP.into()),
        ("FI_AV_TABLE", AV_TABLE.into()),
        ("FI_MR_BASIC", MR_BASIC as u64),
        ("FI_PROGRESS_AUTO", PROGRESS_AUTO.into()),
        ("FI_PROGRESS_MANUAL", PROGRESS_MANUAL.into()),
        ("FI_THREAD_SAFE", THREAD_SAFE.into()),
        ("FI_THREAD_ENDPOINT", THREAD_ENDPOINT.into()),
        ("FI_RM_ENABLED", RM_ENABLED.into()),
        ("FI_ORDER_SAS", ORDER_SAS),
        ("FI_EP_MSG", EP_MSG.into()),
        ("FI_EP_RDM", EP_RDM.into()),
        ("FI_CLASS_FABRIC", CLASS_FABRIC as u64),
        ("FI_CLASS_DOMAIN", CLASS_DOMAIN as u64),
        ("FI_CLASS_EP", CLASS_EP as u64),
        ("FI_CLASS_PEP", CLASS_PEP as u64),
        ("FI_CLASS_AV", CLASS_AV as u64),
        ("FI_CLASS_MR", CLASS_MR as u64),
        ("FI_CLASS_EQ", CLASS_EQ as u64),
        ("FI_CLASS_CQ", CLASS_CQ as u64),
        ("FI_CLASS_CNTR", CLASS_CNTR as u64),
        ("FI_CLASS_CONNREQ", CLASS_CONNREQ as u64),
        ("FI_GETOPSFLAG", GETOPSFLAG as u64),
        ("FI_SETOPSFLAG", SETOPSFLAG as u64),
        ("FI_ENABLE", ENABLE as u64),
        ("FI_BACKLOG", BACKLOG as u64),
        ("FI_WAIT_UNSPEC", WAIT_UNSPEC.into()),
        ("FI_WAIT_YIELD", WAIT_YIELD.into()),
        ("FI_CQ_FORMAT_CONTEXT", CQ_FORMAT_CONTEXT.into()),
        ("FI_CQ_FORMAT_MSG", CQ_FORMAT_MSG.into()),
        ("FI_CQ_FORMAT_DATA", CQ_FORMAT_DATA.into()),
        ("FI_CQ_FORMAT_TAGGED", CQ_FORMAT_TAGGED.into()),
        ("FI_CONNREQ", EVENT_CONNREQ.into()),
        ("FI_CONNECTED", EVENT_CONNECTED.into()),
        ("FI_SHUTDOWN", EVENT_SHUTDOWN.into()),
        ("FI_AV_COMPLETE", EVENT_AV_COMPLETE.into()),
        ("FI_OPT_MIN_MULTI_RECV", OPT_MIN_MULTI_RECV as u64),
        ("FI_OPT_CM_DATA_SIZE", OPT_CM_DATA_SIZE as u64),
        ("FI_EOTHER", EOTHER as u64),
        ("FI_ETOOSMALL", ETOOSMALL as u64),
        ("FI_EOPBADSTATE", EOPBADSTATE as u64),
        ("FI_EAVAIL", EAVAIL as u64),
        ("FI_EBADFLAGS", EBADFLAGS as u64),
        ("FI_ENOEQ", ENOEQ as u64),
        ("FI_ENOCQ", ENOCQ as u64),
        ("FI_ETRUNC", ETRUNC as u64),
        ("FI_ENOKEY", ENOKEY as u64),
        ("FI_ENOAV", ENOAV as u64),
    ]
}

#[test]
fn declarations_agree_with_the_installed_headers() {
    if !std::path::Path::new("/usr/include/rdma/providers/fi_prov.h").exists() {
        eprintln!("skipped: install libfabric-dev to compare declarations");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    std::fs::write(&source, program()).unwrap();
    let output =
        Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&source).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
