/* SPDX-License-Identifier: Apache-2.0 */
/* test_serving_room.c - who gets a connection when they are all taken, and who may call at all. */
#include "serving_world.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "config/err.h"

enum { PLACES = 50 };

static void ask(int fd, const char *path)
{
    client_send(fd, "GET %s HTTP/1.1\r\nHost: t\r\n\r\n", path);
}

static int status_of(int fd, const char *path)
{
    ask(fd, path);
    return client_status(client_response(fd));
}

/* A connection that has been answered and is kept. */
static int idle_from(int host)
{
    int fd = client_open_from(host);
    assert_int_equal(status_of(fd, "/v1/models"), 200);
    return fd;
}

static void close_all(int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* ---- places -------------------------------------------------------------------------------- */

static void serving_closes_the_longest_idle_for_a_newcomer(void **state)
{
    (void)state;
    int fds[PLACES], more[3];
    for (int i = 0; i < PLACES; i++)
        fds[i] = idle_from(1);
    assert_int_equal(status_of(fds[0], "/v1/models"), 200); /* no longer the one */
    for (int i = 0; i < 3; i++)
        more[i] = idle_from(1);
    assert_int_equal(serving->metrics.connections_evicted, 3);
    for (int i = 1; i <= 3; i++)
        assert_true(client_closed(fds[i]));
    assert_int_equal(status_of(fds[0], "/v1/models"), 200);
    assert_int_equal(status_of(fds[4], "/v1/models"), 200);
    assert_int_equal(serving->metrics.connections_refused, 0);
    close_all(fds, PLACES);
    close_all(more, 3);
}

/* Its first request may be on its way, and would end without a word. */
static void serving_says_why_to_whom_it_closes_before_the_first_request(void **state)
{
    (void)state;
    int fds[PLACES], silent = client_open_from(1);
    for (int i = 0; i < PLACES; i++)
        fds[i] = idle_from(1);
    assert_int_equal(serving->metrics.connections_evicted, 1);
    const char *got = client_response(silent);
    assert_non_null(strstr(got, "server.max_connections"));
    assert_int_equal(client_status(got), 503);
    assert_true(client_closed(silent));
    int newcomer = idle_from(1); /* the next to go has had its answer */
    assert_true(client_closed(fds[0]));
    close(silent);
    close(newcomer);
    close_all(fds, PLACES);
}

static struct {
    uv_timer_t timer;
    _Atomic bool wanted, now;
} hold;

static void on_hold(uv_timer_t *t)
{
    (void)t;
    hold.now = hold.wanted;
    while (hold.wanted)
        usleep(1000);
}

static void start_holds(void)
{
    uv_timer_init(&serving->loop, &hold.timer);
    uv_timer_start(&hold.timer, on_hold, 1, 1);
}

/* The newcomer is first in the round of the loop that the request is read in, so that the
 * connection that has waited longest looks idle. */
static void serving_never_closes_on_a_request_that_it_has_not_read(void **state)
{
    (void)state;
    int fds[PLACES];
    serving_stop();
    serving_prepare = start_holds;
    serving_start();
    serving_prepare = NULL;
    for (int i = 0; i < PLACES; i++)
        fds[i] = idle_from(1);
    hold.wanted = true;
    while (!hold.now)
        usleep(1000);
    int newcomer = client_open_from(1);
    ask(fds[0], "/v1/models");
    hold.wanted = false;
    assert_int_equal(client_status(client_response(fds[0])), 200);
    assert_int_equal(status_of(newcomer, "/v1/models"), 200);
    assert_true(client_closed(fds[1]));
    assert_int_equal(serving->metrics.connections_evicted, 1);
    close(newcomer);
    close_all(fds, PLACES);
}

/* All places are at work, and stay; operators are answered all the same. */
static void serving_keeps_places_for_operators(void **state)
{
    (void)state;
    int fds[PLACES];
    toy.queue = PLACES;
    toy.hold = true;
    for (int i = 0; i < PLACES; i++) {
        fds[i] = client_open();
        client_post(fds[i], "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    }
    wait_for(&toy.submitted, PLACES);
    static const struct {
        const char *path;
        int status;
    } asked[] = {{"/health", 200},      {"/metrics", 200},   {"/ready", 200},
                 {"/admin/slots", 403}, {"/v1/models", 503}, {"/specializer", 503}};
    for (int round = 0; round < 5; round++) /* more often than there are such places */
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            int fd = client_open();
            ask(fd, asked[i].path);
            const char *r = client_response(fd);
            assert_int_equal(client_status(r), asked[i].status);
            assert_non_null(strstr(r, "Connection: close"));
            assert_true(client_closed(fd));
            close(fd);
        }
    /* Who takes those places and says nothing loses them to who does. */
    int silent[2 * OPERATOR_CONNECTIONS];
    for (int i = 0; i < 2 * OPERATOR_CONNECTIONS; i++)
        silent[i] = client_open();
    for (int i = 0; i < 3; i++) {
        int fd = client_open();
        assert_int_equal(status_of(fd, "/health"), 200);
        close(fd);
    }
    toy.hold = false;
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(client_status(client_response(fds[i])), 200);
    close_all(silent, 2 * OPERATOR_CONNECTIONS);
    close_all(fds, PLACES);
}

/* Let in above the number, but there is room again by the time that it asks. */
static void serving_keeps_a_newcomer_when_there_is_room_again(void **state)
{
    (void)state;
    int fds[PLACES];
    toy.queue = PLACES;
    toy.hold = true;
    for (int i = 0; i < PLACES; i++) {
        fds[i] = client_open();
        client_post(fds[i], "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    }
    wait_for(&toy.submitted, PLACES);
    int late = client_open();
    client_send(late, "GET /v1/mod");
    for (int i = 0; i < 60000 && serving->metrics.connections_total < PLACES + 1; i++)
        usleep(1000);
    close(fds[0]);
    wait_for(&toy.cancelled, 1);
    client_send(late, "els HTTP/1.1\r\nHost: t\r\n\r\n");
    const char *r = client_response(late);
    assert_int_equal(client_status(r), 200);
    assert_null(strstr(r, "Connection: close"));
    assert_int_equal(status_of(late, "/v1/models"), 200);
    close(late);
    close_all(fds + 1, PLACES - 1);
}

/* The address with more than half of the places pays for a newcomer, however old others are. */
static void serving_takes_places_from_who_has_most(void **state)
{
    (void)state;
    int old[10], many[PLACES - 10], more[5];
    for (int i = 0; i < 10; i++)
        old[i] = idle_from(2);
    for (int i = 0; i < PLACES - 10; i++)
        many[i] = idle_from(3);
    for (int i = 0; i < 5; i++)
        more[i] = idle_from(4 + i);
    for (int i = 0; i < 10; i++)
        assert_int_equal(status_of(old[i], "/v1/models"), 200);
    for (int i = 0; i < 5; i++)
        assert_true(client_closed(many[i]));
    assert_int_equal(serving->metrics.connections_evicted, 5);
    close_all(old, 10);
    close_all(many, PLACES - 10);
    close_all(more, 5);
}

/* Heads that never end are no idle connections, but they keep only their own address out. */
static void serving_takes_places_from_heads_that_never_end(void **state)
{
    (void)state;
    int fds[PLACES];
    for (int i = 0; i < PLACES; i++) {
        fds[i] = client_open_from(3);
        client_send(fds[i], "GET /v1/models HT");
    }
    for (int i = 0; i < 60000 && serving->metrics.bytes_in < PLACES * 17; i++)
        usleep(1000);
    int same = client_open_from(3); /* takes none from itself */
    assert_int_equal(status_of(same, "/v1/models"), 503);
    int other = client_open_from(2);
    assert_int_equal(status_of(other, "/v1/models"), 200);
    assert_int_equal(status_of(other, "/v1/models"), 200);
    assert_int_equal(client_status(client_response(fds[0])), 503); /* and knows why */
    assert_true(client_closed(fds[0]));
    close(same);
    close(other);
    close_all(fds, PLACES);
}

/* ---- descriptors --------------------------------------------------------------------------- */

static void limit_files(rlim_t n)
{
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
}

/* The next descriptor would be this one. */
static rlim_t next_descriptor(void)
{
    int fd = dup(0);
    assert_true(fd >= 0);
    close(fd);
    return (rlim_t)fd;
}

/* One descriptor is left. */
static void leave_one_descriptor(void)
{
    int free_one = dup(0), highest = 0, fd;
    for (fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            highest = fd;
    while ((fd = dup(0)) < highest) /* closes the gaps */
        continue;
    close(fd);
    close(free_one);
    limit_files((rlim_t)highest + 1);
}

/* The loop goes on (libuv by itself would close who comes, or accept in vain for ever), who comes
 * takes the place of an idle connection, and what is at work stays. */
static void serving_survives_without_descriptors(void **state)
{
    (void)state;
    struct rlimit before;
    int fds[3];
    getrlimit(RLIMIT_NOFILE, &before);
    serving_stop();
    for (int i = 0; i < 3; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    serving_prepare = leave_one_descriptor;
    serving_start();
    serving_prepare = NULL;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)serving->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    toy.hold = true;
    int status[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(connect(fds[i], (struct sockaddr *)&a, sizeof(a)), 0);
        status[i] = status_of(fds[i], "/v1/models");
        if (i == 1)
            client_post(fds[i], "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2}");
        for (int k = 0; i == 1 && k < 60000 && toy.submitted < 1; k++)
            usleep(1000);
    }
    limit_files(before.rlim_cur);
    for (int i = 0; i < 3; i++)
        assert_int_equal(status[i], i < 2 ? 200 : 503);
    assert_true(client_closed(fds[0]));
    assert_int_equal(serving->metrics.connections_evicted, 1);
    toy.hold = false;
    assert_int_equal(client_status(client_response(fds[1])), 200);
    close_all(fds, 3);
}

/* The limit of descriptors is known before it is met. */
static void serving_takes_no_more_connections_than_descriptors(void **state)
{
    (void)state;
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    serving_stop();
    serving_config.server_max_connections = 1000;
    limit_files(next_descriptor() + FDS_ELSEWHERE + OPERATOR_CONNECTIONS + 30);
    serving_start();
    limit_files(before.rlim_cur);
    int capacity = serving->room.capacity, fds[200];
    assert_in_range(capacity, 1, 30);
    for (int i = 0; i < 2 * capacity; i++)
        fds[i] = idle_from(1);
    assert_int_equal(serving->metrics.connections_evicted, capacity);
    close_all(fds, 2 * capacity);
}

/* ---- who may call at all ------------------------------------------------------------------- */

#define POST "POST /v1/completions HTTP/1.1\r\n"
#define JSON "Content-Type: application/json\r\n"
#define BODY "Content-Length: 30\r\n\r\n{\"prompt\":\"ab\",\"max_tokens\":1}"

static void serving_refuses_what_other_sites_pages_send(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int status;
        const char *says;
    } cases[] = {
        /* what a form or a plain fetch can send without asking first */
        {POST "Host: t\r\n" BODY, 415, "application/json"},
        {POST "Host: t\r\nContent-Type: text/plain\r\n" BODY, 415, "text/plain"},
        {POST "Host: t\r\nContent-Type:\r\n" BODY, 415, "application/json"},
        {POST "Host: t\r\nContent-Type: application/jsonp\r\n" BODY, 415, "jsonp"},
        {POST "Host: t\r\nContent-Type: text/plain; application/json\r\n" BODY, 415, "text/plain"},
        {POST "Host: t\r\nContent-Type: APPLICATION/json ;charset=utf-8\r\n" BODY, 200, "text"},
        /* pages */
        {POST "Host: t\r\nOrigin: https://evil.example\r\n" JSON BODY, 403, "server.cors_origins"},
        {POST "Host: t\r\nOrigin: null\r\n" JSON BODY, 403, "server.cors_origins"},
        {POST "Host: t\r\nOrigin: http://t.evil.example\r\n" JSON BODY, 403, "evil"},
        {POST "Host: t\r\nOrigin: http://t:81\r\n" JSON BODY, 403, "t:81"},
        {POST "Host: t\r\nOrigin: http://t\r\n" JSON BODY, 200, "text"},
        {POST "Host: t:80\r\nOrigin: http://t\r\n" JSON BODY, 200, "text"},
        {POST "Host: t\r\nOrigin: https://app.example\r\n" JSON BODY, 200, "text"},
        {"POST /admin/specializer/pause HTTP/1.1\r\nHost: t\r\nOrigin: "
         "https://evil.example\r\n\r\n",
         403, "server.cors_origins"},
        {"GET /v1/models HTTP/1.1\r\nHost: t\r\nOrigin: https://evil.example\r\n\r\n", 200, "toy"},
        /* names that somebody else's DNS points here */
        {POST "Host: evil.example\r\n" JSON BODY, 421, "server.hosts"},
        {POST "Host: evil.example\r\nOrigin: http://evil.example\r\n" JSON BODY, 421,
         "evil.example"},
        {"GET /metrics HTTP/1.1\r\nHost: evil.example:8080\r\n\r\n", 421, "server.hosts"},
        {"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "evil"},
        {"GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n", 421, "server.hosts"},
        {"GET /v1/models HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", 421, "evil"},
        {"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 421, "evil"},
        {"GET /v1/models HTTP/1.1\r\nHost: LOCALHOST:8080\r\n\r\n", 200, "toy"},
        {"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n", 200, "toy"},
        {"GET /v1/models HTTP/1.1\r\nHost: 10.1.2.3\r\n\r\n", 200, "toy"},
        {"GET /v1/models HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200, "toy"},
        {"GET /v1/models HTTP/1.1\r\nHost: T:1\r\n\r\n", 200, "toy"},
        {"GET /v1/models HTTP/1.0\r\n\r\n", 200, "toy"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = client_open();
        client_send(fd, "%s", cases[i].request);
        const char *r = client_response(fd);
        if (client_status(r) != cases[i].status || !strstr(client_body(r), cases[i].says))
            fail_msg("expected %d with \"%s\", got: %s for: %s", cases[i].status, cases[i].says, r,
                     cases[i].request);
        close(fd);
    }
    assert_int_equal(toy.submitted, 4); /* those with 200 */
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as serve_main does: the loop runs in this process */
    const struct CMUnitTest tests[] = {
        TEST(serving_closes_the_longest_idle_for_a_newcomer),
        TEST(serving_says_why_to_whom_it_closes_before_the_first_request),
        TEST(serving_never_closes_on_a_request_that_it_has_not_read),
        TEST(serving_keeps_places_for_operators),
        TEST(serving_keeps_a_newcomer_when_there_is_room_again),
        TEST(serving_takes_places_from_who_has_most),
        TEST(serving_takes_places_from_heads_that_never_end),
        TEST(serving_survives_without_descriptors),
        TEST(serving_takes_no_more_connections_than_descriptors),
        TEST(serving_refuses_what_other_sites_pages_send),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
