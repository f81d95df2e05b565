//! Futures, on tokio's executor.

use super::*;
use longma_channel::Error;
use std::time::Instant;
use tokio::time::timeout;

fn run<F: Future>(future: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async { timeout(TIMEOUT, future).await.expect("the test hangs") })
}

#[test]
fn many_clients_are_served_by_two_threads() {
    for [client, server] in transports() {
        let name = name();
        let mut listener = server.listen(&name, small()).unwrap().into_async().unwrap();
        let address = address(&server, &name);
        run(async move {
            let service = tokio::spawn(async move {
                for _ in 0..20 {
                    let mut connection = listener.accept().await.unwrap();
                    tokio::spawn(async move {
                        while let Some(request) = connection.receive_async().await.unwrap() {
                            connection.respond_async(&request, &request.bytes).await.unwrap();
                        }
                    });
                }
            });
            let clients: Vec<_> = (0..20u8)
                .map(|number| {
                    let (client, address) = (client.clone(), address.clone());
                    tokio::spawn(async move {
                        let mut connection = client.connect_async(&address, options()).await.unwrap();
                        for length in [0, 1, 47, 48, 49, 5000] {
                            let request = vec![number; length];
                            assert_eq!(connection.call_async(&request).await.unwrap(), request);
                        }
                    })
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
            service.await.unwrap();
        });
    }
}

#[test]
fn a_future_that_connects_has_a_time_limit_and_can_be_dropped() {
    for [client, server] in transports() {
        let name = name();
        let address = address(&server, &name);
        let listener = server.listen(&name, small()).unwrap();
        run(async {
            let soon = Options { timeout: Some(Duration::from_millis(50)), ..options() };
            // The listener accepts nothing yet.
            assert!(client.connect_async(&address, soon).await.is_err());
            let dropped = timeout(Duration::from_millis(5), client.connect_async(&address, soon)).await;
            assert!(dropped.is_err());
            let mut listener = listener.into_async().unwrap();
            let request = async {
                let mut connection = client.connect_async(&address, options()).await.unwrap();
                connection.send_async(b"hello").await.unwrap();
                connection
            };
            let service = async {
                loop {
                    // Skip clients that gave up.
                    let mut connection = listener.accept().await.unwrap();
                    if let Ok(Some(message)) = connection.receive_async().await {
                        return message.bytes;
                    }
                }
            };
            let (_connection, received) = tokio::join!(request, service);
            assert_eq!(received, b"hello");
        });
    }
}

#[test]
fn a_dropped_receive_loses_nothing_and_a_dropped_send_is_reported() {
    let [mut client, mut server] = shared([options(), small()]);
    run(async move {
        assert!(timeout(Duration::from_millis(20), server.receive_async()).await.is_err());
        // Three slots take 144 bytes; the rest waits.
        assert!(timeout(Duration::from_millis(500), client.send_async(&[5; 400])).await.is_err());
        assert!(
            timeout(Duration::from_millis(500), server.receive_async()).await.is_err(),
            "the rest is missing"
        );
        assert!(matches!(client.send_async(b"next").await, Err(Error::Abandoned)));
        drop(client);
        assert!(matches!(server.receive_async().await, Err(Error::Protocol(_))));
    });
}

#[test]
fn a_message_received_in_many_dropped_futures_arrives_whole() {
    let [mut client, mut server] = shared([options(), small()]);
    run(async move {
        let sent: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let sender = tokio::spawn(async move { client.send_async(&sent).await.map(|()| client) });
        let begin = Instant::now();
        let received = loop {
            if let Ok(received) = timeout(Duration::from_micros(200), server.receive_async()).await {
                break received.unwrap().unwrap();
            }
            assert!(begin.elapsed() < TIMEOUT);
        };
        assert!(received.bytes == expected);
        sender.await.unwrap().unwrap();
    });
}

#[test]
fn started_requests_and_closes_are_futures_too() {
    for transports in transports() {
        let [mut client, mut server] = pair(&transports, [options(), small()]);
        run(async move {
            let service = tokio::spawn(async move {
                while let Some(request) = server.receive_async().await.unwrap() {
                    server.respond_async(&request, &request.bytes).await.unwrap();
                }
            });
            let id = client.start_request_async(&[1; 200]).await.unwrap();
            let response = client.receive_async().await.unwrap().unwrap();
            assert_eq!((response.id, response.bytes), (id, vec![1; 200]));
            client.close_async().await.unwrap();
            service.await.unwrap();
        });
    }
}

#[test]
fn a_dropped_listener_releases_its_name() {
    let transport = Transport::shared_memory().unwrap();
    let name = name();
    for _ in 0..3 {
        drop(transport.listen(&name, options()).unwrap().into_async().unwrap());
    }
}
