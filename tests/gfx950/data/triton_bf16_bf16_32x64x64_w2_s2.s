	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_load_dword s29, s[4:5], 0x20
	v_and_b32_e32 v22, 0x3ff, v0
	v_lshrrev_b32_e32 v1, 1, v0
	v_readfirstlane_b32 s0, v22
	s_bfe_u32 s28, s0, 0x10006
	s_lshl_b32 s22, s16, 5
	v_and_or_b32 v1, v1, 28, s28
	v_and_b32_e32 v17, 15, v0
	v_and_b32_e32 v23, 48, v0
	v_lshlrev_b32_e32 v0, 3, v22
	v_or_b32_e32 v3, s22, v1
	s_lshl_b32 s23, s17, 6
	v_lshl_or_b32 v5, s28, 4, v17
	v_and_b32_e32 v16, 56, v0
	s_mov_b64 s[24:25], s[10:11]
	v_or_b32_e32 v2, 2, v1
	v_or_b32_e32 v0, s23, v5
	v_cmp_gt_i32_e32 vcc, s14, v3
	s_waitcnt lgkmcnt(0)
	s_mul_i32 s30, s29, s22
	s_cmp_gt_i32 s29, 0
	v_cmp_gt_i32_e64 s[18:19], s29, v16
	v_mad_u64_u32 v[18:19], s[10:11], v1, s29, v[16:17]
	v_or_b32_e32 v4, s22, v2
	v_cmp_gt_i32_e64 s[2:3], s15, v0
	s_cselect_b64 s[34:35], -1, 0
	v_mad_u64_u32 v[20:21], s[10:11], v2, s29, v[16:17]
	s_mul_i32 s33, s28, 0x420
	v_add_lshl_u32 v0, v18, s30, 1
	v_bfrev_b32_e32 v26, 1
	s_and_b64 s[20:21], s[18:19], vcc
	v_cmp_gt_i32_e64 s[0:1], s14, v4
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v0, v26, v0, s[20:21]
	s_mov_b32 m0, s33
	s_and_b64 s[18:19], s[18:19], s[0:1]
	buffer_load_dwordx4 v0, s[8:11], 0 offen lds
	v_add_lshl_u32 v0, v20, s30, 1
	v_or_b32_e32 v6, 32, v5
	v_lshrrev_b32_e32 v24, 1, v23
	s_add_i32 m0, s33, 0x840
	v_cndmask_b32_e64 v0, v26, v0, s[18:19]
	v_or_b32_e32 v25, 32, v24
	v_or_b32_e32 v7, s23, v6
	buffer_load_dwordx4 v0, s[8:11], 0 offen lds
	v_mul_lo_u32 v0, v5, s29
	v_cmp_gt_i32_e64 s[4:5], s15, v7
	s_mul_i32 s31, s29, s23
	v_cmp_gt_i32_e64 s[6:7], s29, v24
	v_cmp_gt_i32_e64 s[16:17], s29, v25
	v_add_u32_e32 v27, v0, v24
	s_and_b64 s[18:19], s[16:17], s[2:3]
	s_and_b64 s[20:21], s[16:17], s[4:5]
	v_mul_lo_u32 v1, v6, s29
	v_add_u32_e32 v28, v0, v25
	v_add_lshl_u32 v0, v27, s31, 1
	s_and_b64 s[16:17], s[6:7], s[2:3]
	v_add_u32_e32 v29, v1, v24
	v_add_u32_e32 v30, v1, v25
	s_and_b32 s25, s25, 0xffff
	s_mov_b32 s26, s10
	s_mov_b32 s27, s11
	v_cndmask_b32_e64 v0, v26, v0, s[16:17]
	v_add_lshl_u32 v1, v28, s31, 1
	s_and_b64 s[16:17], s[34:35], s[18:19]
	v_cndmask_b32_e64 v1, v26, v1, s[16:17]
	buffer_load_dwordx4 v[46:49], v0, s[24:27], 0 offen
	buffer_load_dwordx4 v[38:41], v1, s[24:27], 0 offen
	v_add_lshl_u32 v0, v29, s31, 1
	s_and_b64 s[6:7], s[6:7], s[4:5]
	v_cndmask_b32_e64 v0, v26, v0, s[6:7]
	v_add_lshl_u32 v1, v30, s31, 1
	s_and_b64 s[6:7], s[34:35], s[20:21]
	v_cndmask_b32_e64 v1, v26, v1, s[6:7]
	buffer_load_dwordx4 v[42:45], v0, s[24:27], 0 offen
	buffer_load_dwordx4 v[34:37], v1, s[24:27], 0 offen
	s_sub_i32 s35, s29, 64
	s_mov_b32 s34, 0
	s_cmp_lt_i32 s35, 1
	v_lshlrev_b32_e32 v19, 10, v22
	v_lshlrev_b32_e32 v21, 5, v22
	s_cbranch_scc1 .LBB0_3
	v_and_b32_e32 v31, 0xc00, v19
	v_mov_b32_e32 v12, 0
	v_and_b32_e32 v32, 0x180, v21
	v_lshrrev_b32_e32 v33, 5, v31
	s_mov_b32 s37, 0
	v_mov_b32_e32 v13, v12
	v_mov_b32_e32 v14, v12
	v_mov_b32_e32 v15, v12
	v_mov_b32_e32 v8, v12
	v_mov_b32_e32 v9, v12
	v_mov_b32_e32 v10, v12
	v_mov_b32_e32 v11, v12
	v_mov_b32_e32 v4, v12
	v_mov_b32_e32 v5, v12
	v_mov_b32_e32 v6, v12
	v_mov_b32_e32 v7, v12
	v_mov_b32_e32 v0, v12
	v_mov_b32_e32 v1, v12
	v_mov_b32_e32 v2, v12
	v_mov_b32_e32 v3, v12
	s_mov_b32 s36, 0
.LBB0_2:
	s_add_i32 s6, s37, 1
	s_cmp_lt_i32 s6, 2
	s_cselect_b32 s37, s6, 0
	s_add_i32 s36, s36, 64
	v_add3_u32 v50, s34, v32, v31
	v_or_b32_e32 v53, s36, v16
	s_lshl_b32 s34, s37, 7
	v_or_b32_e32 v51, s36, v24
	v_or_b32_e32 v52, s36, v25
	s_add_i32 s20, s36, s30
	s_lshl_b32 s21, s37, 12
	v_cmp_gt_i32_e64 s[18:19], s29, v53
	s_and_b32 s34, s34, 0xfffff80
	v_cmp_gt_i32_e64 s[6:7], s29, v51
	v_cmp_gt_i32_e64 s[16:17], s29, v52
	v_add_lshl_u32 v51, s20, v18, 1
	v_add_lshl_u32 v52, s20, v20, 1
	s_add_i32 s34, s21, s34
	s_and_b64 s[20:21], vcc, s[18:19]
	v_cndmask_b32_e64 v51, v26, v51, s[20:21]
	s_add_i32 s20, s34, s33
	s_and_b64 s[18:19], s[0:1], s[18:19]
	s_mov_b32 m0, s20
	s_waitcnt vmcnt(4)
	s_barrier
	v_add3_u32 v50, v50, v23, v33
	v_cndmask_b32_e64 v52, v26, v52, s[18:19]
	buffer_load_dwordx4 v51, s[8:11], 0 offen lds
	s_add_i32 m0, s20, 0x840
	s_add_i32 s38, s36, s31
	buffer_load_dwordx4 v52, s[8:11], 0 offen lds
	ds_read_b128 v[58:61], v50
	ds_read_b128 v[62:65], v50 offset:64
	s_waitcnt vmcnt(5) lgkmcnt(1)
	v_mfma_f32_16x16x32_bf16 v[12:15], v[46:49], v[58:61], v[12:15]
	v_add_lshl_u32 v53, s38, v27, 1
	v_add_lshl_u32 v55, s38, v29, 1
	s_and_b64 s[18:19], s[2:3], s[6:7]
	s_waitcnt vmcnt(3)
	v_mfma_f32_16x16x32_bf16 v[8:11], v[42:45], v[58:61], v[8:11]
	ds_read_b128 v[58:61], v50 offset:512
	ds_read_b128 v[66:69], v50 offset:576
	s_and_b64 s[6:7], s[4:5], s[6:7]
	v_add_lshl_u32 v54, s38, v28, 1
	v_add_lshl_u32 v56, s38, v30, 1
	v_cndmask_b32_e64 v51, v26, v53, s[18:19]
	s_and_b64 s[18:19], s[2:3], s[16:17]
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_16x16x32_bf16 v[4:7], v[46:49], v[58:61], v[4:7]
	v_cndmask_b32_e64 v46, v26, v55, s[6:7]
	s_and_b64 s[6:7], s[4:5], s[16:17]
	s_mov_b32 s26, s10
	s_mov_b32 s27, s11
	v_cndmask_b32_e64 v52, v26, v54, s[18:19]
	v_cndmask_b32_e64 v47, v26, v56, s[6:7]
	v_mfma_f32_16x16x32_bf16 v[0:3], v[42:45], v[58:61], v[0:3]
	buffer_load_dwordx4 v[42:45], v47, s[24:27], 0 offen
	buffer_load_dwordx4 v[56:59], v51, s[24:27], 0 offen
	s_cmp_lt_i32 s36, s35
	buffer_load_dwordx4 v[52:55], v52, s[24:27], 0 offen
	v_mfma_f32_16x16x32_bf16 v[12:15], v[38:41], v[62:65], v[12:15]
	buffer_load_dwordx4 v[46:49], v46, s[24:27], 0 offen
	s_waitcnt vmcnt(6)
	v_mfma_f32_16x16x32_bf16 v[8:11], v[34:37], v[62:65], v[8:11]
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x32_bf16 v[4:7], v[38:41], v[66:69], v[4:7]
	s_waitcnt vmcnt(1)
	v_mov_b32_e32 v38, v52
	v_mfma_f32_16x16x32_bf16 v[0:3], v[34:37], v[66:69], v[0:3]
	v_mov_b32_e32 v34, v42
	v_mov_b32_e32 v35, v43
	v_mov_b32_e32 v36, v44
	v_mov_b32_e32 v37, v45
	s_waitcnt vmcnt(0)
	v_mov_b32_e32 v42, v46
	v_mov_b32_e32 v43, v47
	v_mov_b32_e32 v44, v48
	v_mov_b32_e32 v45, v49
	v_mov_b32_e32 v39, v53
	v_mov_b32_e32 v40, v54
	v_mov_b32_e32 v41, v55
	v_mov_b32_e32 v46, v56
	v_mov_b32_e32 v47, v57
	v_mov_b32_e32 v48, v58
	v_mov_b32_e32 v49, v59
	s_cbranch_scc1 .LBB0_2
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v2, v3
	v_mov_b32_e32 v1, v3
	v_mov_b32_e32 v0, v3
	v_mov_b32_e32 v7, v3
	v_mov_b32_e32 v6, v3
	v_mov_b32_e32 v5, v3
	v_mov_b32_e32 v4, v3
	v_mov_b32_e32 v11, v3
	v_mov_b32_e32 v10, v3
	v_mov_b32_e32 v9, v3
	v_mov_b32_e32 v8, v3
	v_mov_b32_e32 v15, v3
	v_mov_b32_e32 v14, v3
	v_mov_b32_e32 v13, v3
	v_mov_b32_e32 v12, v3
.LBB0_4:
	s_add_i32 s29, s29, 63
	s_cmp_lt_i32 s29, 64
	s_waitcnt vmcnt(4)
	s_barrier
	s_cbranch_scc1 .LBB0_6
	v_and_b32_e32 v16, 0x180, v21
	v_and_b32_e32 v18, 0xc00, v19
	v_lshrrev_b32_e32 v19, 5, v18
	v_add3_u32 v16, s34, v16, v18
	v_add3_u32 v16, v16, v23, v19
	ds_read_b128 v[18:21], v16
	ds_read_b128 v[24:27], v16 offset:576
	s_waitcnt vmcnt(3) lgkmcnt(1)
	v_mfma_f32_16x16x32_bf16 v[12:15], v[46:49], v[18:21], v[12:15]
	s_waitcnt vmcnt(1)
	v_mfma_f32_16x16x32_bf16 v[8:11], v[42:45], v[18:21], v[8:11]
	ds_read_b128 v[18:21], v16 offset:64
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x32_bf16 v[12:15], v[38:41], v[18:21], v[12:15]
	s_waitcnt vmcnt(0)
	v_mfma_f32_16x16x32_bf16 v[8:11], v[34:37], v[18:21], v[8:11]
	ds_read_b128 v[18:21], v16 offset:512
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x32_bf16 v[4:7], v[46:49], v[18:21], v[4:7]
	v_mfma_f32_16x16x32_bf16 v[0:3], v[42:45], v[18:21], v[0:3]
	v_mfma_f32_16x16x32_bf16 v[4:7], v[38:41], v[24:27], v[4:7]
	v_mfma_f32_16x16x32_bf16 v[0:3], v[34:37], v[24:27], v[0:3]
.LBB0_6:
	v_and_b32_e32 v16, 60, v22
	v_lshl_or_b32 v16, s28, 6, v16
	v_or_b32_e32 v33, s22, v17
	v_lshrrev_b32_e32 v16, 2, v16
	s_waitcnt vmcnt(0)
	v_or_b32_e32 v34, 16, v33
	v_and_b32_e32 v20, 28, v16
	v_cmp_gt_i32_e32 vcc, s14, v33
	v_cmp_gt_i32_e64 s[0:1], s14, v34
	s_mul_i32 s14, s15, s22
	v_or_b32_e32 v21, 34, v20
	v_or_b32_e32 v23, 33, v20
	v_or_b32_e32 v32, s23, v20
	v_mul_lo_u32 v17, s15, v17
	s_add_i32 s14, s14, s23
	v_or_b32_e32 v18, 35, v16
	v_or_b32_e32 v22, s23, v21
	v_or_b32_e32 v24, s23, v23
	v_or_b32_e32 v25, 32, v20
	v_or_b32_e32 v16, 3, v16
	v_or_b32_e32 v28, 2, v20
	v_or_b32_e32 v30, 1, v20
	v_cmp_gt_i32_e64 s[2:3], s15, v32
	v_add_u32_e32 v17, s14, v17
	v_or_b32_e32 v19, s23, v18
	v_or_b32_e32 v26, s23, v25
	v_or_b32_e32 v27, s23, v16
	v_or_b32_e32 v29, s23, v28
	v_or_b32_e32 v31, s23, v30
	v_cmp_gt_i32_e64 s[16:17], s15, v24
	v_cmp_gt_i32_e64 s[18:19], s15, v22
	v_add_lshl_u32 v22, v17, v20, 2
	v_bfrev_b32_e32 v24, 1
	s_and_b64 s[22:23], vcc, s[2:3]
	v_cmp_gt_i32_e64 s[4:5], s15, v31
	v_cmp_gt_i32_e64 s[6:7], s15, v29
	v_cmp_gt_i32_e64 s[8:9], s15, v27
	v_cmp_gt_i32_e64 s[10:11], s15, v26
	v_cmp_gt_i32_e64 s[20:21], s15, v19
	v_lshl_add_u32 v19, s15, 4, v17
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s15, 0x27000
	s_mov_b32 s14, 0x7ffffffe
	v_cndmask_b32_e64 v22, v24, v22, s[22:23]
	buffer_store_dword v12, v22, s[12:15], 0 offen
	v_add_lshl_u32 v12, v17, v30, 2
	s_and_b64 s[22:23], vcc, s[4:5]
	v_cndmask_b32_e64 v12, v24, v12, s[22:23]
	buffer_store_dword v13, v12, s[12:15], 0 offen
	v_add_lshl_u32 v12, v17, v28, 2
	s_and_b64 s[22:23], vcc, s[6:7]
	v_cndmask_b32_e64 v12, v24, v12, s[22:23]
	buffer_store_dword v14, v12, s[12:15], 0 offen
	v_add_lshl_u32 v12, v17, v16, 2
	s_and_b64 s[22:23], vcc, s[8:9]
	v_cndmask_b32_e64 v12, v24, v12, s[22:23]
	buffer_store_dword v15, v12, s[12:15], 0 offen
	v_add_lshl_u32 v12, v17, v25, 2
	s_and_b64 s[22:23], vcc, s[10:11]
	v_cndmask_b32_e64 v12, v24, v12, s[22:23]
	buffer_store_dword v8, v12, s[12:15], 0 offen
	v_add_lshl_u32 v8, v17, v23, 2
	s_and_b64 s[22:23], vcc, s[16:17]
	v_cndmask_b32_e64 v8, v24, v8, s[22:23]
	buffer_store_dword v9, v8, s[12:15], 0 offen
	v_add_lshl_u32 v8, v17, v21, 2
	s_and_b64 s[22:23], vcc, s[18:19]
	v_cndmask_b32_e64 v8, v24, v8, s[22:23]
	buffer_store_dword v10, v8, s[12:15], 0 offen
	v_add_lshl_u32 v8, v17, v18, 2
	s_and_b64 vcc, vcc, s[20:21]
	v_cndmask_b32_e32 v8, v24, v8, vcc
	buffer_store_dword v11, v8, s[12:15], 0 offen
	v_add_lshl_u32 v8, v19, v20, 2
	s_and_b64 vcc, s[0:1], s[2:3]
	v_cndmask_b32_e32 v8, v24, v8, vcc
	buffer_store_dword v4, v8, s[12:15], 0 offen
	v_add_lshl_u32 v4, v19, v30, 2
	s_and_b64 vcc, s[0:1], s[4:5]
	v_cndmask_b32_e32 v4, v24, v4, vcc
	buffer_store_dword v5, v4, s[12:15], 0 offen
	v_add_lshl_u32 v4, v19, v28, 2
	s_and_b64 vcc, s[0:1], s[6:7]
	v_cndmask_b32_e32 v4, v24, v4, vcc
	buffer_store_dword v6, v4, s[12:15], 0 offen
	v_add_lshl_u32 v4, v19, v16, 2
	s_and_b64 vcc, s[0:1], s[8:9]
	v_cndmask_b32_e32 v4, v24, v4, vcc
	buffer_store_dword v7, v4, s[12:15], 0 offen
	v_add_lshl_u32 v4, v19, v25, 2
	s_and_b64 vcc, s[0:1], s[10:11]
	v_cndmask_b32_e32 v4, v24, v4, vcc
	buffer_store_dword v0, v4, s[12:15], 0 offen
	v_add_lshl_u32 v0, v19, v23, 2
	s_and_b64 vcc, s[0:1], s[16:17]
	v_cndmask_b32_e32 v0, v24, v0, vcc
	buffer_store_dword v1, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v19, v21, 2
	s_and_b64 vcc, s[0:1], s[18:19]
	v_cndmask_b32_e32 v0, v24, v0, vcc
	buffer_store_dword v2, v0, s[12:15], 0 offen
	v_add_lshl_u32 v0, v19, v18, 2
	s_and_b64 vcc, s[0:1], s[20:21]
	v_cndmask_b32_e32 v0, v24, v0, vcc
	buffer_store_dword v3, v0, s[12:15], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	gemm, .Lfunc_end0-gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 8416
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 312
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 70
		.amdhsa_next_free_sgpr 39
		.amdhsa_accum_offset 72
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .offset:         24
        .size:           4
        .value_kind:     by_value
      - .offset:         28
        .size:           4
        .value_kind:     by_value
      - .offset:         32
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         40
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         48
        .size:           8
        .value_kind:     global_buffer
      - .offset:         56
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         60
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         64
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         68
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         70
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         72
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         74
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         76
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         78
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         96
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         104
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         120
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         136
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         144
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         152
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         160
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         168
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         176
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         256
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 8416
    .kernarg_segment_align: 8
    .kernarg_segment_size: 312
    .max_flat_workgroup_size: 128
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     45
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     70
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
