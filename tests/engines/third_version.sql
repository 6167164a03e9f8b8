BEGIN TRANSACTION;
CREATE TABLE decisions (seq INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT;
INSERT INTO "decisions" VALUES(1,'{"is":"Opened","spec":{"chains":[{"name":"NODE","levels":[{"cell_type":"GPU","fanout":1,"gpus":1},{"cell_type":"NODE","fanout":2,"gpus":2}],"node_level":2,"top_cells":1,"node_names":["vm"]}],"virtual_clusters":[{"name":"vision","cells":[{"chain":"NODE","level":2,"number":1}]}],"source":"the shares (--vc)"}}');
INSERT INTO "decisions" VALUES(2,'{"is":"Recovered","records":[]}');
INSERT INTO "decisions" VALUES(3,'{"is":"Scheduled","request":{"group":"one-1","vc":"vision","members":[{"pods":1,"leaf_cells":1}]},"suggested_nodes":null,"now":1795706612.3879485,"decision":{"is":"Bind","group":"one-1","placement":{"chain":"NODE","pods":[["vm",[0]]],"reserved_levels":[2]},"within":"GPU"}}');
INSERT INTO "decisions" VALUES(4,'{"is":"Committed","decision":{"is":"Bind","group":"one-1","placement":{"chain":"NODE","pods":[["vm",[0]]],"reserved_levels":[2]},"within":"GPU"}}');
INSERT INTO "decisions" VALUES(5,'{"is":"Released","group":"one-1"}');
INSERT INTO "decisions" VALUES(6,'{"is":"Scheduled","request":{"group":"two-2","vc":"vision","members":[{"pods":1,"leaf_cells":1}]},"suggested_nodes":null,"now":1795706614.5096922,"decision":{"is":"Bind","group":"two-2","placement":{"chain":"NODE","pods":[["vm",[0]]],"reserved_levels":[2]},"within":"GPU"}}');
INSERT INTO "decisions" VALUES(7,'{"is":"Committed","decision":{"is":"Bind","group":"two-2","placement":{"chain":"NODE","pods":[["vm",[0]]],"reserved_levels":[2]},"within":"GPU"}}');
INSERT INTO "decisions" VALUES(8,'{"is":"Scheduled","request":{"group":"three-3","vc":"vision","members":[{"pods":1,"leaf_cells":2}]},"suggested_nodes":null,"now":1795706616.5536366,"decision":{"is":"Wait","group":"three-3","reasons":[{"is":"VcExhausted","vc":"vision","need":2,"have":1,"size":2,"held_by":[["two-2",1]],"more":0}]}}');
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job INTEGER, data TEXT NOT NULL) STRICT;
INSERT INTO "events" VALUES(1,1.79570661077359199518e+09,'engine_started',NULL,'{"pid":16272,"devices":"2 simulated devices"}');
INSERT INTO "events" VALUES(2,1.79570661077359199518e+09,'recovered',NULL,'{"running":0,"active":0}');
INSERT INTO "events" VALUES(3,1.79570661238215017315e+09,'submitted',1,'{"name":"one-1","vc":"vision","gpus":1,"user":"root"}');
INSERT INTO "events" VALUES(4,1.795706612387948513e+09,'started',1,'{"attempt":1,"port":0,"placement":{"chain":"NODE","pods":[["vm",[0]]],"levels":[2]}}');
INSERT INTO "events" VALUES(5,1.79570661252952456466e+09,'task_ended',1,'{"attempt":1,"rank":0,"code":0,"signal":null,"stopped":false,"limit":false,"error":null,"lost":false,"rebooted":false,"started":1795706612.5017083,"ended":1795706612.5295246}');
INSERT INTO "events" VALUES(6,1.79570661252952456466e+09,'succeeded',1,'{"code":0,"why":""}');
INSERT INTO "events" VALUES(7,1.7957066145028436184e+09,'submitted',2,'{"name":"two-2","vc":"vision","gpus":1,"user":"root"}');
INSERT INTO "events" VALUES(8,1.7957066145096921921e+09,'started',2,'{"attempt":1,"port":0,"placement":{"chain":"NODE","pods":[["vm",[0]]],"levels":[2]}}');
INSERT INTO "events" VALUES(9,1.79570661655025601384e+09,'submitted',3,'{"name":"three-3","vc":"vision","gpus":2,"user":"root"}');
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, base TEXT NOT NULL, vc TEXT NOT NULL, state TEXT NOT NULL,
    ended INTEGER NOT NULL, spec TEXT NOT NULL, status TEXT NOT NULL) STRICT;
INSERT INTO "jobs" VALUES(1,'one-1','one','vision','succeeded',1,'{"vc":"vision","command":["echo","one"],"gpus":1,"tasks":1,"priority":0,"name":"one","cwd":"/","environment":[["PATH","/usr/bin:/bin"]],"retries":0,"backoff_s":5.0,"time_limit_s":null,"grace_s":30.0,"lazy_preemption":false,"user":"root","early":false}','{"submitted_at":1795706612.3821502,"since":1795706612.5295246,"attempt":1,"resumes":0,"retries":0,"port":0,"started_at":1795706612.3879485,"ended_at":1795706612.5295246,"exit_code":0,"reason":"","stopping_for":"","retry_at":null,"endings":{"0":{"attempt":1,"rank":0,"code":0,"signal":null,"stopped":false,"limit":false,"error":null,"lost":false,"rebooted":false,"started":1795706612.5017083,"ended":1795706612.5295246}},"state":"succeeded","preempted_by":null,"guaranteed":false,"placement":null}');
INSERT INTO "jobs" VALUES(2,'two-2','two','vision','running',0,'{"vc":"vision","command":["sh","-c","echo two; exec sleep 600"],"gpus":1,"tasks":1,"priority":0,"name":"two","cwd":"/","environment":[["PATH","/usr/bin:/bin"]],"retries":0,"backoff_s":5.0,"time_limit_s":null,"grace_s":30.0,"lazy_preemption":false,"user":"root","early":false}','{"submitted_at":1795706614.5028436,"since":1795706614.5096922,"attempt":1,"resumes":0,"retries":0,"port":0,"started_at":1795706614.5096922,"ended_at":null,"exit_code":null,"reason":"","stopping_for":"","retry_at":null,"endings":{},"state":"running","preempted_by":null,"guaranteed":true,"placement":{"chain":"NODE","pods":[["vm",[0]]],"levels":[2]}}');
INSERT INTO "jobs" VALUES(3,'three-3','three','vision','queued',0,'{"vc":"vision","command":["echo","three"],"gpus":2,"tasks":1,"priority":0,"name":"three","cwd":"/","environment":[["PATH","/usr/bin:/bin"]],"retries":0,"backoff_s":5.0,"time_limit_s":null,"grace_s":30.0,"lazy_preemption":false,"user":"root","early":false}','{"submitted_at":1795706616.550256,"since":1795706616.550256,"attempt":0,"resumes":0,"retries":0,"port":0,"started_at":null,"ended_at":null,"exit_code":null,"reason":"","stopping_for":"","retry_at":null,"endings":{},"state":"queued","preempted_by":null,"guaranteed":false,"placement":null}');
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "meta" VALUES('opened','16272');
INSERT INTO "meta" VALUES('mark','6e1b673d2ca2');
INSERT INTO "meta" VALUES('spec','{"is":"Opened","spec":{"chains":[{"name":"NODE","levels":[{"cell_type":"GPU","fanout":1,"gpus":1},{"cell_type":"NODE","fanout":2,"gpus":2}],"node_level":2,"top_cells":1,"node_names":["vm"]}],"virtual_clusters":[{"name":"vision","cells":[{"chain":"NODE","level":2,"number":1}]}],"source":"the shares (--vc)"}}');
INSERT INTO "meta" VALUES('start','{"simulated": true, "shares": [["vision", 2]]}');
CREATE TABLE virtual (name TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT;
CREATE INDEX events_of_jobs ON events (job, seq);
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_base ON jobs (base, id);
CREATE INDEX jobs_of_vcs ON jobs (vc, id);
PRAGMA user_version = 3;
COMMIT;
