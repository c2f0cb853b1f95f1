/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_http.c - see adviser_http.h.
 *
 * One easy handle on a multi handle: the multi interface is what lets another thread end a call at
 * once (curl_multi_wakeup), so that stopping the server never waits for a model.
 *
 * response_format is tried first. An endpoint that answers 400, 404, 415, 422 or 501 to it is asked
 * again without, and from then on never with: the strict parser behind does not need it, it only
 * makes valid replies likelier. What libcurl says goes into messages as curl_easy_strerror() has
 * it, which knows neither URL nor headers.
 */
#include "specializer/adviser/adviser_http.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/json_strict.h"
#include "config/key_file.h"

#define CONNECT_MS 10000
enum { HEAD_BYTES_MOST = 64 * 1024 };
/* A key shorter than this is too likely to be an innocent part of a reply to be looked for there.
 */
enum { KEY_MOST = 4096, KEY_TELLING = 8 };

/* What the key's file holds, for as long as one call takes. */
struct key {
    char text[KEY_MOST + 2];
    size_t n; /* 0: no key is needed */
};

struct adviser_http {
    const struct config *config;
    CURLM *multi;
    CURL *easy;
    atomic_bool stop;
    bool plain; /* the endpoint does not take response_format */
};

/* What has come so far. */
struct body {
    char *data;
    size_t n, head; /* bytes of the answer, and of what stands before it */
    bool too_large;
};

const char *call_fault_name(enum call_fault f)
{
    static const char *const names[CALL_FAULTS] = {"ok",
#define F(id, name) name,
                                                   CALL_FAULT_LIST(F)
#undef F
    };
    return f < CALL_FAULTS ? names[f] : "?";
}

/* ---- opening ------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global;

static void init_curl(void)
{
    global = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t take(char *data, size_t size, size_t n, void *ctx)
{
    struct body *b = ctx;
    n *= size;
    if (n > ANSWER_BYTES_MOST - b->n) {
        b->too_large = true;
        return 0;
    }
    b->data = xrealloc(b->data, b->n + n + 1);
    memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = 0;
    return n;
}

/* Lines before the answer, of as many heads as there are (100 Continue). libcurl keeps them, and
 * before 8.4 without any bound of its own. */
static size_t count_head(char *data, size_t size, size_t n, void *ctx)
{
    struct body *b = ctx;
    (void)data;
    n *= size;
    if (n > HEAD_BYTES_MOST - b->head) {
        b->too_large = true;
        return 0;
    }
    b->head += n;
    return n;
}

struct adviser_http *adviser_http_open(const struct config *c, struct err *err)
{
    const char *url = c->adviser_url;
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) {
        err_set(err, "adviser.url is not an http:// or https:// URL, nor replay:<file>");
        return NULL;
    }
    pthread_once(&once, init_curl);
    struct adviser_http *h = xcalloc(1, sizeof *h);
    h->config = c;
    h->multi = global == CURLE_OK ? curl_multi_init() : NULL;
    h->easy = h->multi ? curl_easy_init() : NULL;
    if (!h->easy) {
        err_set(err, "adviser: libcurl cannot be used: %s", curl_easy_strerror(global));
        adviser_http_close(h);
        return NULL;
    }
#if LIBCURL_VERSION_NUM >= 0x075500
    CURLcode code = curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    CURLcode code = curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    if (code == CURLE_OK)
        code = curl_easy_setopt(h->easy, CURLOPT_URL, url);
    curl_easy_setopt(h->easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(h->easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    curl_easy_setopt(h->easy, CURLOPT_QUICK_EXIT, 1L); /* the resolver's thread ends by itself */
#endif
    curl_easy_setopt(h->easy, CURLOPT_MAXFILESIZE, (long)ANSWER_BYTES_MOST);
    curl_easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, count_head);
    curl_easy_setopt(h->easy, CURLOPT_HTTP_CONTENT_DECODING, 0L); /* nothing unpacks itself here */
    curl_easy_setopt(h->easy, CURLOPT_USERAGENT, "whet");
    if (code == CURLE_OK)
        return h;
    err_set(err, "adviser.url: %s", curl_easy_strerror(code));
    adviser_http_close(h);
    return NULL;
}

void adviser_http_close(struct adviser_http *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->easy);
    curl_multi_cleanup(h->multi);
    free(h);
}

void adviser_http_stop(struct adviser_http *h)
{
    atomic_store(&h->stop, true);
    curl_multi_wakeup(h->multi);
}

/* ---- the request --------------------------------------------------------------------------- */

static void fail(struct answer *out, enum call_fault fault, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct answer *out, enum call_fault fault, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->why, sizeof out->why, fmt, args);
    va_end(args);
    out->fault = fault;
}

static void add_message(cJSON *messages, const char *role, const char *text)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", text);
    cJSON_AddItemToArray(messages, m);
}

static char *body_text(const struct adviser_http *h, const struct call *call)
{
    cJSON *o = cJSON_CreateObject();
    const struct call_style *style = &call->style;
    cJSON_AddStringToObject(o, "model", style->model ? style->model : h->config->adviser_model);
    cJSON *messages = cJSON_AddArrayToObject(o, "messages");
    add_message(messages, "system", call->task);
    add_message(messages, "user", call->document);
    cJSON_AddNumberToObject(o, "max_tokens", (double)style->max_tokens);
    if (style->temperature >= 0)
        cJSON_AddNumberToObject(o, "temperature", style->temperature);
    cJSON_AddFalseToObject(o, "stream");
    if (!h->plain && call->schema) {
        cJSON *format = cJSON_AddObjectToObject(o, "response_format");
        cJSON_AddStringToObject(format, "type", "json_schema");
        cJSON *schema = cJSON_AddObjectToObject(format, "json_schema");
        cJSON_AddStringToObject(schema, "name", call->name);
        cJSON_AddTrueToObject(schema, "strict");
        cJSON_AddRawToObject(schema, "schema", call->schema);
    }
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

/* Reads the key's file, if there is one. False with the reason. */
static bool key_read(const struct adviser_http *h, struct key *key, struct answer *out)
{
    const char *path = h->config->adviser_key_file;
    key->n = 0;
    if (!path[0])
        return true;
    FILE *in = fopen(path, "rb");
    if (in)
        setvbuf(in, NULL, _IONBF, 0); /* no copy that nobody wipes */
    size_t n = in ? fread(key->text, 1, KEY_MOST + 1, in) : 0;
    bool ok = in && !ferror(in);
    if (in)
        fclose(in);
    while (n > 0 && strchr(" \t\r\n", key->text[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        ok = ok && key->text[i] > 0x20 && key->text[i] < 0x7f;
    key->n = ok && n <= KEY_MOST ? n : 0;
    key->text[key->n] = 0;
    if (key->n == 0)
        fail(out, CALL_KEY, "adviser.key_file %.120s cannot be read, or holds no key", path);
    return key->n > 0;
}

/* An endpoint may say back what it was sent; what it says is stored and shown. */
static void key_blot(const struct key *key, char *text)
{
    if (key->n < KEY_TELLING)
        return;
    for (char *at = text; (at = strstr(at, key->text)) != NULL; at += key->n)
        memset(at, '*', key->n);
}

/* ---- the exchange -------------------------------------------------------------------------- */

static enum call_fault fault_of(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
        return CALL_CONNECT;
    case CURLE_OPERATION_TIMEDOUT:
        return CALL_TIMEOUT;
    case CURLE_FILESIZE_EXCEEDED:
        return CALL_TOO_LARGE;
    default:
        return CALL_BROKEN;
    }
}

/* Drives the transfer to its end; CURLE_ABORTED_BY_CALLBACK when it was stopped. */
static CURLcode transfer(struct adviser_http *h)
{
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;
    curl_multi_add_handle(h->multi, h->easy);
    while (running > 0 && !atomic_load(&h->stop)) {
        if (curl_multi_perform(h->multi, &running) != CURLM_OK)
            break;
        if (running > 0)
            curl_multi_poll(h->multi, NULL, 0, 1000, NULL);
    }
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));)
        if (m->msg == CURLMSG_DONE)
            code = m->data.result;
    curl_multi_remove_handle(h->multi, h->easy);
    return code;
}

/* Posts `text` with what is left of the time; the HTTP status, or 0 with a fault. */
static long post_text(struct adviser_http *h, const struct key *key, const char *text,
                      int64_t until, struct body *b, struct answer *out)
{
    char authorization[KEY_MOST + 32];
    long left_ms = (long)((until - clock_ns()) / 1000000), status = 0;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");
    if (key->n > 0) {
        snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", key->text);
        headers = curl_slist_append(headers, authorization);
        explicit_bzero(authorization, sizeof authorization);
    }
    if (left_ms < 1)
        left_ms = 1;
    curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    curl_easy_setopt(h->easy, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(h->easy, CURLOPT_TIMEOUT_MS, left_ms);
    curl_easy_setopt(h->easy, CURLOPT_CONNECTTIMEOUT_MS,
                     left_ms < CONNECT_MS ? left_ms : (long)CONNECT_MS);
    curl_easy_setopt(h->easy, CURLOPT_WRITEDATA, b);
    curl_easy_setopt(h->easy, CURLOPT_HEADERDATA, b);
    out->calls++;
    CURLcode code = transfer(h);
    for (struct curl_slist *s = headers; s; s = s->next)
        explicit_bzero(s->data, strlen(s->data));
    curl_slist_free_all(headers);
    if (code == CURLE_OK)
        curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    if (b->too_large)
        code = CURLE_FILESIZE_EXCEEDED;
    if (atomic_load(&h->stop))
        fail(out, CALL_STOPPED, "stopped");
    else if (code == CURLE_FILESIZE_EXCEEDED)
        fail(out, CALL_TOO_LARGE, "more than %d bytes, or %d of headers", ANSWER_BYTES_MOST,
             HEAD_BYTES_MOST);
    else if (code != CURLE_OK)
        fail(out, fault_of(code), "%s", curl_easy_strerror(code));
    return out->fault == CALL_OK ? status : 0;
}

static int32_t count_of(const cJSON *usage, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(usage, name);
    return cJSON_IsNumber(v) && v->valuedouble > 0 && v->valuedouble < 1e9 ? v->valueint : 0;
}

/* Takes choices[0].message.content and the counts out of a completion. */
static void read_completion(const struct body *b, struct answer *out)
{
    /* A zero in a string would hide what is behind it. */
    bool whole = b->n > 0 && !json_bad_place(b->data, b->n);
    cJSON *o = whole ? cJSON_ParseWithLength(b->data, b->n) : NULL;
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(o, "choices"), 0);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(choice, "message");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(o, "usage");
    out->tokens_in = count_of(usage, "prompt_tokens");
    out->tokens_out = count_of(usage, "completion_tokens");
    if (cJSON_IsString(content))
        out->text = xstrdup(content->valuestring);
    else
        fail(out, CALL_PROTOCOL, "the answer is not a chat completion with text");
    cJSON_Delete(o);
}

static void read_status(struct adviser_http *h, long status, const struct body *b,
                        struct answer *out)
{
    curl_off_t after = 0;
    if (status == 200) {
        read_completion(b, out);
        return;
    }
    curl_easy_getinfo(h->easy, CURLINFO_RETRY_AFTER, &after);
    out->retry_after_s = after > 0 && after < 86400 ? (double)after : 0;
    enum call_fault fault = status == 429                   ? CALL_RATE
                            : status >= 300 && status < 400 ? CALL_REDIRECT
                            : status >= 400 && status < 500 ? CALL_REFUSED
                            : status >= 500                 ? CALL_SERVER
                                                            : CALL_PROTOCOL;
    fail(out, fault, "HTTP status %ld", status);
}

static bool dislikes_schema(long status)
{
    return status == 400 || status == 404 || status == 415 || status == 422 || status == 501;
}

void adviser_http_post(struct adviser_http *h, const struct call *call, struct answer *out)
{
    int64_t start = clock_ns(), until = start + (int64_t)(call->style.timeout * 1e9);
    struct key key;
    *out = (struct answer){0};
    bool again = key_read(h, &key, out);
    while (again) {
        struct body b = {0};
        char *text = body_text(h, call);
        long status = post_text(h, &key, text, until, &b, out);
        free(text);
        again = !h->plain && call->schema && dislikes_schema(status);
        if (again)
            h->plain = true;
        else if (status != 0)
            read_status(h, status, &b, out);
        free(b.data);
    }
    if (out->text)
        key_blot(&key, out->text);
    explicit_bzero(&key, sizeof key);
    out->seconds = (double)(clock_ns() - start) * 1e-9;
}
