//! Starts and stops listening at an address.

use longma_via::provider::udp::Udp;
use longma_via::*;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const NOW: Option<Duration> = Some(Duration::ZERO);

fn vi(nic: &Nic) -> Vi {
    let tag = nic.create_protection_tag().unwrap();
    nic.create_vi(ViAttributes::new(tag), None, None).unwrap()
}

/// A server and a client over each provider, and the server's address.
fn pairs(name: &str) -> [(Nic, Nic, Address); 2] {
    let name = format!("listener-{name}-{}", std::process::id());
    let udp = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    [(Nic::open().unwrap(), Nic::open().unwrap()), (udp(), udp())].map(|(server, client)| {
        let address = Address::new(&server.attributes().local_address, &name);
        (server, client, address)
    })
}

fn connect(client: &Nic, address: &Address) -> Result<ViAttributes, Error> {
    vi(client).connect(&Address::local("client"), address, TIMEOUT)
}

#[test]
fn an_address_is_taken_from_listening_until_closing() {
    for (server, client, address) in pairs("taken") {
        let local = Address::local(&address.discriminator);
        let listener = server.listen(&local).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| listener.wait(TIMEOUT).unwrap().accept(&vi(&server)).unwrap());
            connect(&client, &address).unwrap();
        });
        drop(listener);
        assert!(matches!(connect(&client, &address), Err(Error::NoMatch(_))));
        // The address can be used again.
        let listener = server.listen(&local).unwrap();
        assert!(matches!(listener.wait(NOW), Err(Error::Timeout)));
    }
}

#[test]
fn a_nic_listens_once_at_an_address() {
    for (server, client, address) in pairs("once") {
        let local = Address::local(&address.discriminator);
        let listener = server.listen(&local).unwrap();
        let second = server.listen(&local).err().expect("the address is in use");
        assert!(matches!(&second, Error::AddressInUse(_)), "{second}");
        // The refused listener has not closed the first.
        std::thread::scope(|scope| {
            scope.spawn(|| listener.wait(TIMEOUT).unwrap().accept(&vi(&server)).unwrap());
            connect(&client, &address).unwrap();
        });
    }
}

#[test]
fn another_nic_can_use_the_name_after_closing() {
    let [(one, other, address), _] = pairs("again");
    let local = Address::local(&address.discriminator);
    let listener = one.listen(&local).unwrap();
    assert!(matches!(other.listen(&local), Err(Error::AddressInUse(_))));
    listener.close();
    other.listen(&local).unwrap();
}

#[test]
fn closing_ends_a_wait_in_another_thread() {
    for (server, _, address) in pairs("wait") {
        let listener = server.listen(&Address::local(&address.discriminator)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.wait(None));
            std::thread::sleep(Duration::from_millis(50));
            listener.close();
            assert!(matches!(waiting.join().unwrap(), Err(Error::InvalidState(_))));
        });
        assert!(matches!(listener.wait(None), Err(Error::InvalidState(_))));
    }
}

#[test]
fn a_client_that_has_given_up_is_not_handed_out() {
    let [(server, client, address), _] = pairs("impatient");
    let local = Address::local(&address.discriminator);
    assert!(matches!(server.connect_wait(&local, NOW), Err(Error::Timeout)));
    let impatient = Some(Duration::from_millis(1));
    let given_up = vi(&client).connect(&Address::local("impatient"), &address, impatient);
    assert!(matches!(given_up, Err(Error::Timeout)));
    std::thread::scope(|scope| {
        // A server that ends on the first error serves the patient client.
        scope.spawn(|| server.connect_wait(&local, TIMEOUT).unwrap().accept(&vi(&server)).unwrap());
        connect(&client, &address).unwrap();
    });
}

#[test]
fn a_client_that_has_given_up_is_not_handed_out_over_udp_either() {
    let [_, (server, client, address)] = pairs("impatient-udp");
    let listener = server.listen(&Address::local(&address.discriminator)).unwrap();
    let impatient = Some(Duration::from_millis(100));
    let given_up = vi(&client).connect(&Address::local("impatient"), &address, impatient);
    assert!(matches!(given_up, Err(Error::Timeout)));
    // The client would have repeated its request in this time.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(matches!(listener.wait(NOW), Err(Error::Timeout)));
}
