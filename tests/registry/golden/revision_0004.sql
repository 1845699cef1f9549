BEGIN TRANSACTION;
CREATE TABLE bcd_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT bcd_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "bcd_alembic_version" VALUES('0004');
CREATE TABLE bcd_cost_models (
	id VARCHAR(64) NOT NULL, 
	target TEXT NOT NULL, 
	booster_digest VARCHAR(64) NOT NULL, 
	samples_digest VARCHAR(64) NOT NULL, 
	metadata TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_cost_models PRIMARY KEY (id)
);
INSERT INTO "bcd_cost_models" VALUES('5e1acfa49f11aa0b20cd094ea36040f5cb854935d9e28be01ff6330e89be6394','{"kind":"llvm"}','ec8ce1a8be0e259a75805a0a6397489d6413413e2c322bacbf3e3a2b874fd5de','24baa7a731ce04b431af93d94cba8e0160a0e6a4607edc2d70c595dd098e56cf','{"n_features":164,"rank_accuracy":0.75}',1000.0);
CREATE TABLE bcd_environments (
	"key" VARCHAR(64) NOT NULL, 
	fields TEXT NOT NULL, 
	CONSTRAINT pk_bcd_environments PRIMARY KEY ("key")
);
INSERT INTO "bcd_environments" VALUES('b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','{"calibration_ms":12.5,"cores":2,"cpu_model":"AMD EPYC","isa":["avx2","fma","sse4.2"],"llvm":"20.1.0","load":0.25,"measurement":{"flush":true,"repeats":3},"target":{"kind":"llvm","mcpu":"znver3","num-cores":2},"tvm":"0.27.0","tvm_ffi":"0.1.14"}');
CREATE TABLE bcd_event_records (
	event_id VARCHAR(64) NOT NULL, 
	record_id VARCHAR(64) NOT NULL, 
	undone_by VARCHAR(64), 
	CONSTRAINT pk_bcd_event_records PRIMARY KEY (event_id, record_id), 
	CONSTRAINT fk_bcd_event_records_event_id FOREIGN KEY(event_id) REFERENCES bcd_events (id) ON DELETE CASCADE
);
INSERT INTO "bcd_event_records" VALUES('e3','1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30','e2');
INSERT INTO "bcd_event_records" VALUES('e3','26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44','e2');
INSERT INTO "bcd_event_records" VALUES('e2','1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30',NULL);
INSERT INTO "bcd_event_records" VALUES('e2','26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44',NULL);
INSERT INTO "bcd_event_records" VALUES('e1','1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30',NULL);
INSERT INTO "bcd_event_records" VALUES('e1','26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44',NULL);
INSERT INTO "bcd_event_records" VALUES('e0','1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30',NULL);
INSERT INTO "bcd_event_records" VALUES('e0','26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44',NULL);
CREATE TABLE bcd_events (
	id VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	selection TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_events PRIMARY KEY (id)
);
INSERT INTO "bcd_events" VALUES('e3','invalidated','a bad driver','{}',1997.0);
INSERT INTO "bcd_events" VALUES('e2','restored','a bad driver','{}',1998.0);
INSERT INTO "bcd_events" VALUES('e1','drifted','a bad driver','{}',1999.0);
INSERT INTO "bcd_events" VALUES('e0','steady','a bad driver','{}',2000.0);
CREATE TABLE bcd_leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	token BIGINT NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_leases PRIMARY KEY (name)
);
INSERT INTO "bcd_leases" VALUES('cluster c','run-1',1,1.79614019373566794392e+09);
CREATE TABLE bcd_network_tasks (
	network TEXT NOT NULL, 
	version TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	workload_key VARCHAR(64) NOT NULL, 
	weight INTEGER NOT NULL, 
	CONSTRAINT pk_bcd_network_tasks PRIMARY KEY (network, version, position), 
	CONSTRAINT fk_bcd_network_tasks_network_version FOREIGN KEY(network, version) REFERENCES bcd_networks (name, version) ON DELETE CASCADE, 
	CONSTRAINT fk_bcd_network_tasks_workload_key FOREIGN KEY(workload_key) REFERENCES bcd_workloads ("key")
);
INSERT INTO "bcd_network_tasks" VALUES('ocr','1',0,'fused_0','99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9',1);
INSERT INTO "bcd_network_tasks" VALUES('ocr','1',1,'fused_1','b0bf811fce5d0e501424dbcfb990fe5ed7fe8c4685397e2aeb558d2374050acb',2);
CREATE TABLE bcd_networks (
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	source TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	shapes TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_networks PRIMARY KEY (name, version)
);
INSERT INTO "bcd_networks" VALUES('ocr','1','ocr.onnx','8d13ec3c392fc7b0439cd595dcaf0ac133a8b4171ec96fd6742f8d98da1be23f','{"input":[1,3,48,192]}',1000.0);
CREATE TABLE bcd_pins (
	network TEXT NOT NULL, 
	version TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_pins PRIMARY KEY (network, version)
);
INSERT INTO "bcd_pins" VALUES('ocr','1',1.79614019372583580014e+09);
CREATE TABLE bcd_records (
	id VARCHAR(64) NOT NULL, 
	workload_key VARCHAR(64) NOT NULL, 
	environment_key VARCHAR(64) NOT NULL, 
	trace_digest VARCHAR(64) NOT NULL, 
	sketch VARCHAR(64) NOT NULL, 
	decisions TEXT NOT NULL, 
	run_times_s TEXT NOT NULL, 
	median_s DOUBLE NOT NULL, 
	untuned_s DOUBLE, 
	trials INTEGER NOT NULL, 
	depth INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	parent_id VARCHAR(64), 
	created_at DOUBLE NOT NULL, cost_model_id VARCHAR(64), drift TEXT DEFAULT '' NOT NULL, invalidated VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_bcd_records PRIMARY KEY (id), 
	CONSTRAINT fk_bcd_records_environment_key FOREIGN KEY(environment_key) REFERENCES bcd_environments ("key"), 
	CONSTRAINT fk_bcd_records_workload_key FOREIGN KEY(workload_key) REFERENCES bcd_workloads ("key")
);
INSERT INTO "bcd_records" VALUES('1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30','99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','7908f9d0a092313029459fe237f11855ce2c063932f8251b7d955b83e7c4b7ba','f416b363c6c5f07011f5dc463a2395873ee035f0f8bea3e585297ec65052c737','[["SamplePerfectTile",[8,4]],["SampleCategorical",2]]','[0.0011,0.001,0.0009]',0.001,0.002,32,32,'measured','','run-measured',NULL,1000.0,NULL,'','');
INSERT INTO "bcd_records" VALUES('26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44','99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','c441d66c13acf1c2df09824dbf59e45ea6444abeff5291bd1762d6d8fd29fb0f','f416b363c6c5f07011f5dc463a2395873ee035f0f8bea3e585297ec65052c737','[["SamplePerfectTile",[8,4]],["SampleCategorical",2]]','[0.0011,0.001,0.0009]',0.001,0.002,32,32,'checked','','run-checked',NULL,1000.0,NULL,'','');
INSERT INTO "bcd_records" VALUES('3fda2ecaac273992cd4fce2b93fa3ab9b670599ced570374db3dde6349bb0d63','99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','39d0941855cb37ac3f6add22c3c986fb6cdd8ce86e3f7df4d91d744014c8a177','f416b363c6c5f07011f5dc463a2395873ee035f0f8bea3e585297ec65052c737','[["SamplePerfectTile",[8,4]],["SampleCategorical",2]]','[0.0011,0.001,0.0009]',0.001,0.002,32,32,'published','','run-published',NULL,1000.0,NULL,'','');
INSERT INTO "bcd_records" VALUES('856582ade80fc4f0b03b4c518871cd280f4d8dcf79cb74c4e73f01f3107e55d9','99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','5bce7386dfb2294a04933ddda6736ea900105511ad8ffaca9a2c704812dfe364','f416b363c6c5f07011f5dc463a2395873ee035f0f8bea3e585297ec65052c737','[["SamplePerfectTile",[8,4]],["SampleCategorical",2]]','[0.0011,0.001,0.0009]',0.001,0.002,32,32,'quarantined','','run-quarantined',NULL,1000.0,NULL,'','');
CREATE TABLE bcd_refutations (
	record_id VARCHAR(64) NOT NULL, 
	workload_key VARCHAR(64) NOT NULL, 
	environment_key VARCHAR(64) NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	distance DOUBLE, 
	ratio DOUBLE, 
	run_id TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_bcd_refutations PRIMARY KEY (record_id, workload_key, environment_key), 
	CONSTRAINT fk_bcd_refutations_record_id FOREIGN KEY(record_id) REFERENCES bcd_records (id) ON DELETE CASCADE, 
	CONSTRAINT fk_bcd_refutations_workload_key FOREIGN KEY(workload_key) REFERENCES bcd_workloads ("key"), 
	CONSTRAINT fk_bcd_refutations_environment_key FOREIGN KEY(environment_key) REFERENCES bcd_environments ("key")
);
INSERT INTO "bcd_refutations" VALUES('1a96a8a02301bfb48e441e6195fb69a1bdc0447a8b24fe940024de93f0b16a30','b0bf811fce5d0e501424dbcfb990fe5ed7fe8c4685397e2aeb558d2374050acb','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','80bde0416f5e317f58cbf33e2b1d1c49829b4d49c9faadf80aa33768ce8a137d',1.41421356237309514547e+00,1.5,'ab12cd34ef567890',2000.0);
INSERT INTO "bcd_refutations" VALUES('26b97f0109cb321a8355ffa00928b3ce6be5f1438cf6388d52b18d538318ad44','b0bf811fce5d0e501424dbcfb990fe5ed7fe8c4685397e2aeb558d2374050acb','b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb','80bde0416f5e317f58cbf33e2b1d1c49829b4d49c9faadf80aa33768ce8a137d',NULL,NULL,'ab12cd34ef567890',1000.0);
CREATE TABLE bcd_runs (
	id TEXT NOT NULL, 
	network TEXT NOT NULL, 
	version TEXT NOT NULL, 
	environment_key VARCHAR(64) NOT NULL, 
	seed TEXT NOT NULL, 
	trials INTEGER NOT NULL, 
	tuning_s DOUBLE NOT NULL, 
	finished BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	report TEXT NOT NULL, 
	CONSTRAINT pk_bcd_runs PRIMARY KEY (id)
);
INSERT INTO "bcd_runs" VALUES('run-measured','ocr','1','ba5285161ba6eed0085fb13784ce5c92f70ebc268b94fd66aa1d68a32884204d','9223372036854775809',64,12.5,1,1000.0,'{"schema":1,"tasks":[]}');
CREATE TABLE bcd_workloads (
	"key" VARCHAR(64) NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	anchor VARCHAR(64) NOT NULL, 
	extents TEXT NOT NULL, 
	anchor_extents TEXT NOT NULL, 
	flops DOUBLE NOT NULL, 
	bytes_moved DOUBLE NOT NULL, 
	op TEXT NOT NULL, 
	description TEXT NOT NULL, 
	CONSTRAINT pk_bcd_workloads PRIMARY KEY ("key")
);
INSERT INTO "bcd_workloads" VALUES('99484da922eb257879c97433da91a244770c57820f021edaf61ed4c9e417f4c9','80bde0416f5e317f58cbf33e2b1d1c49829b4d49c9faadf80aa33768ce8a137d','4643d2d1a1e22c522bf7a0a1b518fa54398a49d18e2dfa35517728e58ccdc679','[16,32]','[16,32]',32.0,1024.0,'conv2d+relu','{"name":"w1"}');
INSERT INTO "bcd_workloads" VALUES('b0bf811fce5d0e501424dbcfb990fe5ed7fe8c4685397e2aeb558d2374050acb','80bde0416f5e317f58cbf33e2b1d1c49829b4d49c9faadf80aa33768ce8a137d','4643d2d1a1e22c522bf7a0a1b518fa54398a49d18e2dfa35517728e58ccdc679','[64,32]','[64,32]',128.0,1024.0,'conv2d+relu','{"name":"w2"}');
CREATE INDEX ix_bcd_workloads_anchor ON bcd_workloads (anchor);
CREATE INDEX ix_bcd_workloads_cluster ON bcd_workloads (cluster);
CREATE INDEX ix_bcd_network_tasks_workload_key ON bcd_network_tasks (workload_key);
CREATE INDEX ix_bcd_records_created_at ON bcd_records (created_at);
CREATE INDEX ix_bcd_records_trace_digest ON bcd_records (trace_digest);
CREATE INDEX ix_bcd_cost_models_target_created_at ON bcd_cost_models (target, created_at);
CREATE INDEX ix_bcd_runs_created_at ON bcd_runs (created_at);
CREATE INDEX ix_bcd_runs_network_version ON bcd_runs (network, version);
CREATE INDEX ix_bcd_refutations_cluster ON bcd_refutations (cluster);
CREATE INDEX ix_bcd_events_created_at ON bcd_events (created_at);
CREATE INDEX ix_bcd_event_records_record_id ON bcd_event_records (record_id);
CREATE INDEX ix_bcd_records_best ON bcd_records (workload_key, environment_key, state, median_s, id, invalidated);
CREATE INDEX ix_bcd_records_parent_id ON bcd_records (parent_id);
CREATE INDEX ix_bcd_workloads_op ON bcd_workloads (op);
COMMIT;
